package dev.leasehold;

import dev.leasehold.error.AcquireException;
import dev.leasehold.error.HeldException;
import dev.leasehold.error.WaitTimeoutException;
import dev.leasehold.internal.Ask;
import dev.leasehold.internal.Call;
import dev.leasehold.internal.Caller;
import dev.leasehold.internal.Grip;
import dev.leasehold.internal.Reply;
import dev.leasehold.internal.Telemetry;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Executor;
import java.util.function.Consumer;
import java.util.function.Function;

/** One acquire under way, told by a future that is done by an executor. Whoever ends the future sooner gives it up. */
final class Acquisition<T> implements Reply {
    private final LockRequest request;
    private final Executor executor;
    private final Function<Lease, T> found;
    private final CompletableFuture<T> future = new CompletableFuture<>();
    /** What is told to the caller, one after the other. */
    private CompletableFuture<Void> told = CompletableFuture.completedFuture(null);

    private Telemetry.Acquiring telemetry;
    private T ifHeld;
    private long left;
    private volatile String requestId;
    private volatile boolean isAnswered;

    Acquisition(LockRequest request, Executor executor, Function<Lease, T> found) {
        this.request = request;
        this.executor = executor;
        this.found = found;
    }

    /** The same, but with an answer if somebody else has the lock. */
    Acquisition<T> ifHeld(T answer) {
        ifHeld = answer;
        return this;
    }

    /** Begins to wait, at most so many nanoseconds. */
    CompletableFuture<T> begin(long wait) {
        left = wait;
        future.whenComplete((result, error) -> {
            if (!isAnswered) {
                caller().cancel(requestId);
                telemetry.failed(null);
            }
        });
        ask();
        return future;
    }

    private Caller caller() {
        Grip under = request.under();
        return under == null ? request.backend() : under.orders();
    }

    private void ask() {
        long wait = Math.min(left, LockRequest.WAIT_MAX);
        left -= wait;
        telemetry = Telemetry.acquire(request.names(), wait);
        Call call = request.call(telemetry.traceparent());
        requestId = call.requestId();
        caller().acquire(new Ask(call, wait, this, request.under()));
        if (future.isDone() && !isAnswered) {
            // Given up between two waits.
            caller().cancel(requestId);
        }
    }

    @Override
    public void place(QueuePlace place) {
        telemetry.queued(place);
        Consumer<? super QueuePlace> hook = request.queueHook();
        if (hook != null) {
            told = told.thenRunAsync(() -> tell(hook, place), executor);
        }
    }

    private void tell(Consumer<? super QueuePlace> hook, QueuePlace place) {
        if (future.isDone()) {
            return;
        }
        try {
            hook.accept(place);
        } catch (Throwable fault) {
            // As if it had been called by the code that waits.
            future.completeExceptionally(fault);
        }
    }

    @Override
    public void granted(Grip grip) {
        told = told.thenRunAsync(() -> take(grip), executor);
    }

    private void take(Grip grip) {
        isAnswered = true;
        Lease lease = new Lease(grip);
        if (!future.complete(found.apply(lease))) {
            grip.giveBack(null);
        } else {
            telemetry.granted(grip.leaseId());
        }
    }

    @Override
    public void failed(AcquireException why) {
        if (why instanceof WaitTimeoutException && left > 0 && !future.isDone()) {
            telemetry.failed(why);
            ask();
            return;
        }
        told = told.thenRunAsync(() -> fail(why), executor);
    }

    private void fail(AcquireException why) {
        isAnswered = true;
        boolean isDone = why instanceof HeldException && ifHeld != null
                ? future.complete(ifHeld)
                : future.completeExceptionally(why);
        if (isDone) {
            telemetry.failed(why);
        }
    }
}
