package dev.leasehold.internal;

import dev.leasehold.QueuePlace;
import dev.leasehold.error.AcquireException;

/** The caller of an acquire, as seen from the thread that keeps leases. Nothing here may block. */
public interface Reply {
    /** Where it stands. */
    void place(QueuePlace place);

    /** It has got its locks, which are its own to give back. */
    void granted(Grip grip);

    /** It has got nothing. */
    void failed(AcquireException why);
}
