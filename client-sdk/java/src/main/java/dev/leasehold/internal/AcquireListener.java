package dev.leasehold.internal;

import dev.leasehold.QueuePosition;
import dev.leasehold.error.AcquireException;

/** Listener for the results of an acquire. Called by the client thread; implementations must not block. */
public interface AcquireListener {
    /** Receives a queue position. */
    void onQueuePosition(QueuePosition position);

    /** Receives the grant. The listener becomes responsible for releasing the locks. */
    void onGranted(LeaseHandle handle);

    /** Receives the error of a failed acquire. */
    void onFailed(AcquireException error);
}
