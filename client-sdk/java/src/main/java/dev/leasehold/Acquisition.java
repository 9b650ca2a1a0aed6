package dev.leasehold;

import dev.leasehold.error.AcquireException;
import dev.leasehold.error.HeldException;
import dev.leasehold.error.WaitTimeoutException;
import dev.leasehold.internal.AcquireCommand;
import dev.leasehold.internal.AcquireListener;
import dev.leasehold.internal.AcquireParams;
import dev.leasehold.internal.AcquireSender;
import dev.leasehold.internal.LeaseHandle;
import dev.leasehold.internal.Telemetry;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Executor;
import java.util.function.Consumer;
import java.util.function.Function;

/**
 * One pending acquire, whose outcome completes a future by way of an executor. Completing or cancelling the future
 * earlier cancels the acquire.
 */
final class Acquisition<T> implements AcquireListener {
    private final LockRequest request;
    private final Executor executor;
    private final Function<Lease, T> toResult;
    private final CompletableFuture<T> future = new CompletableFuture<>();
    /** Last of the notifications to the caller, which run one after the other. */
    private CompletableFuture<Void> notifications = CompletableFuture.completedFuture(null);

    private Telemetry.AcquireTelemetry telemetry;
    private T resultIfHeld;
    private long remainingWait;
    private volatile String requestId;
    private volatile boolean hasResult;

    Acquisition(LockRequest request, Executor executor, Function<Lease, T> toResult) {
        this.request = request;
        this.executor = executor;
        this.toResult = toResult;
    }

    /** Sets the result for the case that another caller holds the lock, or the lock is closed. */
    Acquisition<T> withResultIfHeld(T result) {
        resultIfHeld = result;
        return this;
    }

    /** Sends the first call. Waits in the queue for at most {@code wait} nanoseconds in all. */
    CompletableFuture<T> start(long wait) {
        remainingWait = wait;
        future.whenComplete((result, error) -> {
            if (!hasResult) {
                sender().cancel(requestId);
                telemetry.recordFailed(null);
            }
        });
        sendCommand();
        return future;
    }

    private AcquireSender sender() {
        LeaseHandle under = request.under();
        return under == null ? request.backend() : under.sender();
    }

    private void sendCommand() {
        long wait = Math.min(remainingWait, LockRequest.WAIT_MAX);
        remainingWait -= wait;
        telemetry = Telemetry.startAcquire(request.lockNames(), wait);
        AcquireParams params = request.createParams(telemetry.traceparent());
        requestId = params.requestId();
        sender().acquire(new AcquireCommand(params, wait, this, request.under()));
        if (future.isDone() && !hasResult) {
            // The future was cancelled between two calls.
            sender().cancel(requestId);
        }
    }

    @Override
    public void onQueuePosition(QueuePosition position) {
        telemetry.recordQueued(position);
        Consumer<? super QueuePosition> hook = request.queueHook();
        if (hook != null) {
            notifications = notifications.thenRunAsync(() -> callHook(hook, position), executor);
        }
    }

    private void callHook(Consumer<? super QueuePosition> hook, QueuePosition position) {
        if (future.isDone()) {
            return;
        }
        try {
            hook.accept(position);
        } catch (Throwable error) {
            // The exception reaches the caller as if the waiting code had called the hook.
            future.completeExceptionally(error);
        }
    }

    @Override
    public void onGranted(LeaseHandle handle) {
        notifications = notifications.thenRunAsync(() -> deliver(handle), executor);
    }

    private void deliver(LeaseHandle handle) {
        hasResult = true;
        Lease lease = new Lease(handle);
        if (!future.complete(toResult.apply(lease))) {
            handle.release(null);
        } else {
            telemetry.recordGranted(handle.leaseId());
        }
    }

    @Override
    public void onFailed(AcquireException error) {
        if (error instanceof WaitTimeoutException && remainingWait > 0 && !future.isDone()) {
            telemetry.recordFailed(error);
            sendCommand();
            return;
        }
        notifications = notifications.thenRunAsync(() -> fail(error), executor);
    }

    private void fail(AcquireException error) {
        hasResult = true;
        boolean isDone = error instanceof HeldException && resultIfHeld != null
                ? future.complete(resultIfHeld)
                : future.completeExceptionally(error);
        if (isDone) {
            telemetry.recordFailed(error);
        }
    }
}
