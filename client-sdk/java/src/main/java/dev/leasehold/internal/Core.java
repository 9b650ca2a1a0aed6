package dev.leasehold.internal;

import dev.leasehold.LockState;
import dev.leasehold.error.AcquireException;
import dev.leasehold.error.ClosedException;
import dev.leasehold.error.UnavailableException;
import dev.leasehold.error.UnreachableException;
import dev.leasehold.v1.GetLockRequest;
import io.grpc.Status;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;

/** A client's thread, its streams, and how they end. The public methods are for any thread, the others for that one. */
public final class Core implements Backend, Worker.Ticking {
    /** Leases and waits of one stream, as the broker allows. */
    private static final int STREAM_LEASES_MAX = 1_000;
    /** How long a shutdown waits for brokers. */
    private static final long SHUTDOWN_LIMIT = Times.millis(2_000);

    private final Brokers brokers;
    private final Worker worker = new Worker("leasehold", this);
    private final List<Keeper> keepers = new ArrayList<>();
    private final CompletableFuture<Void> closed = new CompletableFuture<>();
    private boolean isClosed;
    /** Keepers that are still ending. */
    private int ending;

    private Core(Brokers brokers) {
        this.brokers = brokers;
    }

    /** Begins. No broker is spoken to before the first call. */
    public static Core start(Brokers brokers) {
        Core core = new Core(brokers);
        core.worker.start();
        return core;
    }

    @Override
    public CompletableFuture<Void> connect() {
        CompletableFuture<Void> told = new CompletableFuture<>();
        worker.post(() -> {
            if (isClosed) {
                told.completeExceptionally(new UnreachableException("the client is shut down"));
            } else {
                keeper(0).moves.tellFirst(told);
            }
        });
        return told;
    }

    @Override
    public void acquire(Ask ask) {
        worker.post(() -> {
            if (isClosed) {
                ask.reply().failed(new ClosedException());
            } else {
                keeper(1).waits.ask(ask);
            }
        });
    }

    @Override
    public void cancel(String requestId) {
        worker.post(() -> keepers.forEach(keeper -> keeper.waits.cancel(requestId)));
    }

    @Override
    public CompletableFuture<Optional<LockState>> look(LockName lock) {
        CompletableFuture<Optional<LockState>> told = new CompletableFuture<>();
        worker.post(() -> {
            if (isClosed) {
                told.completeExceptionally(new ClosedException());
                return;
            }
            Keeper keeper = keeper(0);
            CompletableFuture<Void> connected = new CompletableFuture<>();
            connected.whenComplete((nothing, error) -> look(keeper, lock, told));
            keeper.moves.tellFirst(connected);
        });
        return told;
    }

    private void look(Keeper keeper, LockName lock, CompletableFuture<Optional<LockState>> told) {
        if (keeper.link() == null) {
            AcquireException why =
                    isClosed ? new ClosedException() : new UnavailableException(keeper.moves.whyNot(), null);
            told.completeExceptionally(why);
            return;
        }
        GetLockRequest request = GetLockRequest.newBuilder()
                .setNamespace(lock.namespace())
                .setName(lock.name())
                .build();
        keeper.link().look(request, (response, error) -> {
            if (error == null) {
                told.complete(Optional.of(Reading.state(response.getLock())));
            } else if (Status.fromThrowable(error).getCode() == Status.Code.NOT_FOUND) {
                told.complete(Optional.empty());
            } else {
                told.completeExceptionally(unanswered(error));
            }
        });
    }

    private static AcquireException unanswered(Throwable error) {
        return switch (Status.fromThrowable(error).getCode()) {
            case CANCELLED, UNAVAILABLE, DEADLINE_EXCEEDED -> reasoned(error);
            default -> Reading.refused(Reading.status(error));
        };
    }

    private static AcquireException reasoned(Throwable error) {
        AcquireException said = Reading.refused(Reading.status(error));
        // Of gRPC, which has no reasons of ours.
        boolean isOurs = !(said instanceof dev.leasehold.error.OtherException);
        return isOurs ? said : new UnavailableException("the stream broke", null);
    }

    @Override
    public CompletableFuture<Void> close() {
        worker.post(() -> close(worker.now() + SHUTDOWN_LIMIT));
        return closed;
    }

    private void close(long by) {
        if (isClosed) {
            return;
        }
        // A call that comes now must not make another keeper, which nobody would close.
        isClosed = true;
        ending = keepers.size() + 1;
        List.copyOf(keepers).forEach(keeper -> keeper.close(by, this::ended));
        ended();
    }

    private void ended() {
        ending--;
        if (ending == 0) {
            worker.stop();
            closed.complete(null);
        }
    }

    /** One with room for so many leases or waits more. */
    private Keeper keeper(int more) {
        for (Keeper keeper : keepers) {
            if (keeper.load() + more <= STREAM_LEASES_MAX) {
                return keeper;
            }
        }
        Keeper keeper = new Keeper(worker, brokers);
        keepers.add(keeper);
        return keeper;
    }

    @Override
    public void tick(long now) {
        List.copyOf(keepers).forEach(keeper -> keeper.tick(now));
    }

    @Override
    public boolean isIdle() {
        return keepers.stream().allMatch(Keeper::isIdle);
    }
}
