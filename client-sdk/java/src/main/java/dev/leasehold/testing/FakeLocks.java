package dev.leasehold.testing;

import dev.leasehold.Holder;
import dev.leasehold.LockState;
import dev.leasehold.Loss;
import dev.leasehold.LostReason;
import dev.leasehold.QueuePlace;
import dev.leasehold.error.AcquireException;
import dev.leasehold.error.ClosedException;
import dev.leasehold.error.HeldException;
import dev.leasehold.error.LeaseLostException;
import dev.leasehold.error.LimitMismatchException;
import dev.leasehold.error.UpgradeDeniedException;
import dev.leasehold.error.WaitTimeoutException;
import dev.leasehold.internal.Ask;
import dev.leasehold.internal.Grip;
import dev.leasehold.internal.LockName;
import dev.leasehold.internal.Orders;
import dev.leasehold.internal.Trust;
import dev.leasehold.internal.Worker;
import dev.leasehold.v1.LockTarget;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Deque;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.CompletableFuture;

/** The locks of a fake broker: who holds them, and who waits in which order. Touched by one thread only. */
final class FakeLocks implements Worker.Ticking {
    /** A lease, and whose it is. */
    private record Leased(Orders client, Trust trust) {}

    private final Map<LockName, List<FakeHold>> held = new HashMap<>();
    private final Map<String, Leased> leases = new HashMap<>();
    private final List<FakeWaiter> line = new ArrayList<>();
    private final Map<LockName, Deque<AcquireException>> refusals = new HashMap<>();
    private final Set<Orders> closed = new HashSet<>();
    private long lastToken;

    @Override
    public boolean isIdle() {
        return line.isEmpty();
    }

    /** Takes locks, at once or in its turn. */
    void acquire(Orders client, Ask ask, long now) {
        AcquireException error = never(client, ask);
        if (error != null) {
            ask.reply().failed(error);
            return;
        }
        FakeWaiter waiter = new FakeWaiter(client, ask, now + ask.waitTimeout());
        line.add(waiter);
        settle();
        if (ask.waitTimeout() <= 0 && line.contains(waiter)) {
            refuse(waiter, false);
        }
    }

    /** The next call for this lock gets this answer. */
    void refuseNext(LockName lock, AcquireException error) {
        refusals.computeIfAbsent(lock, one -> new ArrayDeque<>()).add(error);
    }

    /** Why a call can never be granted, or null. */
    private AcquireException never(Orders client, Ask ask) {
        if (closed.contains(client)) {
            return new ClosedException();
        }
        Loss loss = ask.under() == null ? null : ask.under().trust().loss();
        if (loss != null) {
            return new LeaseLostException(loss);
        }
        for (LockTarget one : ask.call().targets()) {
            LockName lock = LockName.of(one);
            if (refusals.containsKey(lock) && !refusals.get(lock).isEmpty()) {
                return refusals.get(lock).remove();
            }
            AcquireException error = misfit(ask, one, holds(lock));
            if (error != null) {
                return error;
            }
        }
        return null;
    }

    private static AcquireException misfit(Ask ask, LockTarget one, List<FakeHold> holds) {
        int weight = FakeHold.weight(one);
        int limit = FakeHold.limit(one, holds);
        if (weight > limit || (!holds.isEmpty() && holds.get(0).limit() != limit)) {
            return new LimitMismatchException(
                    "another limit or mode is in use on this lock, or it has not so many permits", null);
        }
        boolean isMore = ask.under() != null
                && holds.stream()
                        .anyMatch(hold -> hold.leaseId().equals(ask.under().leaseId()) && hold.weight() < weight);
        return isMore ? new UpgradeDeniedException("the lease shares the lock, and cannot have it alone", null) : null;
    }

    private List<FakeHold> holds(LockName lock) {
        return held.getOrDefault(lock, List.of());
    }

    /** The caller is gone. */
    void cancel(String requestId) {
        line.removeIf(waiter -> waiter.ask().call().requestId().equals(requestId));
        settle();
    }

    /** Gives back what one acquire has got. */
    void release(Grip grip, CompletableFuture<Void> asked) {
        CompletableFuture<Void> answer = asked == null ? new CompletableFuture<>() : asked;
        if (!leases.containsKey(grip.leaseId())) {
            Loss loss = grip.trust().loss();
            answer.completeExceptionally(new LeaseLostException(loss == null ? new Loss(LostReason.CLOSED) : loss));
            return;
        }
        for (Grip.Token token : grip.tokens()) {
            List<FakeHold> holds = held.get(token.lock());
            holds.removeIf(hold -> hold.leaseId().equals(grip.leaseId()) && hold.leave(grip.requestId()));
        }
        boolean isLast = held.values().stream()
                .flatMap(List::stream)
                .noneMatch(hold -> hold.leaseId().equals(grip.leaseId()));
        if (isLast) {
            leases.remove(grip.leaseId()).trust().end(new Loss(LostReason.RELEASED));
        }
        answer.complete(null);
        settle();
    }

    /** Takes a lock away from everybody; how many leases are over. */
    int lose(LockName lock, Loss loss) {
        Set<String> lost = new HashSet<>();
        holds(lock).forEach(hold -> lost.add(hold.leaseId()));
        end(lost, loss);
        return lost.size();
    }

    /** A client is shut down: what it holds is free, and its calls are over. */
    void close(Orders client) {
        closed.add(client);
        List<FakeWaiter> gone =
                line.stream().filter(waiter -> waiter.client() == client).toList();
        line.removeAll(gone);
        gone.forEach(waiter -> waiter.ask().reply().failed(new ClosedException()));
        Set<String> own = new HashSet<>();
        leases.forEach((leaseId, lease) -> {
            if (lease.client() == client) {
                own.add(leaseId);
            }
        });
        end(own, new Loss(LostReason.CLOSED));
    }

    private void end(Set<String> gone, Loss loss) {
        held.values().forEach(holds -> holds.removeIf(hold -> gone.contains(hold.leaseId())));
        gone.forEach(leaseId -> leases.remove(leaseId).trust().end(loss));
        settle();
    }

    /** Who holds a lock. */
    List<Holder> holders(LockName lock) {
        return holds(lock).stream().map(FakeHold::holder).toList();
    }

    /** How many calls wait for a lock. */
    int queueLength(LockName lock) {
        return (int) line.stream().filter(waiter -> waiter.wants(lock)).count();
    }

    /** What a client sees of a lock. */
    void look(Orders client, LockName lock, CompletableFuture<Optional<LockState>> told) {
        if (closed.contains(client)) {
            told.completeExceptionally(new ClosedException());
            return;
        }
        List<Holder> holders = holders(lock);
        int waiting = queueLength(lock);
        if (holders.isEmpty() && waiting == 0) {
            told.complete(Optional.empty());
            return;
        }
        long newest = holders.stream().mapToLong(Holder::fencingToken).max().orElse(lastToken);
        told.complete(Optional.of(new LockState(holders, waiting, newest)));
    }

    /** Ends the waits whose time has passed. */
    @Override
    public void tick(long now) {
        List<FakeWaiter> late =
                line.stream().filter(waiter -> now >= waiter.until()).toList();
        late.forEach(waiter -> refuse(waiter, true));
    }

    private void refuse(FakeWaiter waiter, boolean hasWaited) {
        if (!line.remove(waiter)) {
            // It has got its locks since.
            return;
        }
        List<Holder> holders = waiter.locks().stream()
                .flatMap(lock -> holders(lock).stream())
                .limit(5)
                .toList();
        int waiting = waiter.locks().stream().mapToInt(this::queueLength).max().orElse(0);
        String message = waiter.locks() + " is held";
        waiter.ask()
                .reply()
                .failed(
                        hasWaited
                                ? new WaitTimeoutException(message, holders, waiting, null)
                                : new HeldException(message, holders, waiting, null));
        settle();
    }

    /** Grants what can be granted, in the order of the line. */
    private void settle() {
        Set<LockName> wanted = new HashSet<>();
        for (FakeWaiter waiter : List.copyOf(line)) {
            Loss loss = waiter.ask().under() == null
                    ? null
                    : waiter.ask().under().trust().loss();
            boolean isFirst = waiter.locks().stream().noneMatch(wanted::contains);
            if (loss != null) {
                line.remove(waiter);
                waiter.ask().reply().failed(new LeaseLostException(loss));
            } else if (isFirst && fits(waiter)) {
                line.remove(waiter);
                grant(waiter);
            } else {
                wanted.addAll(waiter.locks());
            }
        }
        line.forEach(this::tellPlace);
    }

    private boolean fits(FakeWaiter waiter) {
        return waiter.ask().call().targets().stream().allMatch(one -> {
            List<FakeHold> holds = holds(LockName.of(one));
            boolean isIn = holds.stream().anyMatch(hold -> waiter.isUnder(hold.leaseId()));
            int taken = holds.stream().mapToInt(FakeHold::weight).sum();
            // Sums of whole locks would flow over.
            return isIn || FakeHold.weight(one) <= FakeHold.limit(one, holds) - taken;
        });
    }

    private void grant(FakeWaiter waiter) {
        Ask ask = waiter.ask();
        String leaseId = ask.under() == null ? FakeHold.freshId() : ask.under().leaseId();
        Trust trust = ask.under() == null ? FakeHold.endless() : ask.under().trust();
        leases.putIfAbsent(leaseId, new Leased(waiter.client(), trust));
        List<Grip.Token> tokens = ask.call().targets().stream()
                .map(one -> new Grip.Token(LockName.of(one), enter(leaseId, one, ask)))
                .toList();
        Grip grip = new Grip(leaseId, tokens, ask.call().requestId(), trust, waiter.client());
        ask.reply().granted(grip);
    }

    private long enter(String leaseId, LockTarget one, Ask ask) {
        List<FakeHold> holds = held.computeIfAbsent(LockName.of(one), lock -> new ArrayList<>());
        for (FakeHold hold : holds) {
            if (hold.leaseId().equals(leaseId)) {
                hold.enter(ask.call().requestId(), FakeHold.weight(one));
                return hold.holder().fencingToken();
            }
        }
        lastToken++;
        holds.add(FakeHold.of(leaseId, one, FakeHold.limit(one, holds), ask, lastToken));
        return lastToken;
    }

    private void tellPlace(FakeWaiter waiter) {
        LockName lock = waiter.locks().get(0);
        List<FakeWaiter> before = line.subList(0, line.indexOf(waiter));
        int position =
                1 + (int) before.stream().filter(other -> other.wants(lock)).count();
        waiter.tell(new QueuePlace(position, queueLength(lock), holders(lock)));
    }
}
