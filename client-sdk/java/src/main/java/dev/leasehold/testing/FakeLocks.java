package dev.leasehold.testing;

import dev.leasehold.Holder;
import dev.leasehold.LockState;
import dev.leasehold.Loss;
import dev.leasehold.LostReason;
import dev.leasehold.PermitUsage;
import dev.leasehold.QueuePosition;
import dev.leasehold.error.AcquireException;
import dev.leasehold.error.ClosedException;
import dev.leasehold.error.HeldException;
import dev.leasehold.error.LeaseLostException;
import dev.leasehold.error.LimitMismatchException;
import dev.leasehold.error.UpgradeDeniedException;
import dev.leasehold.error.WaitTimeoutException;
import dev.leasehold.internal.AcquireCommand;
import dev.leasehold.internal.CommandSender;
import dev.leasehold.internal.LeaseHandle;
import dev.leasehold.internal.LeaseValidity;
import dev.leasehold.internal.LockName;
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
import java.util.OptionalInt;
import java.util.Set;
import java.util.concurrent.CompletableFuture;

/** The locks of a fake broker, with their holders and queues. Confined to the thread of the broker. */
final class FakeLocks implements Worker.TickHandler {
    /** A lease with its client. */
    private record FakeLease(CommandSender client, LeaseValidity validity) {}

    private final Map<LockName, List<FakeHold>> holdsByLock = new HashMap<>();
    private final Map<String, FakeLease> leases = new HashMap<>();
    /** Limits of locks that have holders or waiters. The limit of an idle lock is stale. */
    private final Map<LockName, Integer> limits = new HashMap<>();
    /** Limits that were set, which override those of callers. */
    private final Map<LockName, Integer> setLimits = new HashMap<>();

    private final List<FakeWaiter> queue = new ArrayList<>();
    private final Map<LockName, Deque<AcquireException>> nextErrors = new HashMap<>();
    private final Set<CommandSender> closedClients = new HashSet<>();
    private long lastToken;

    @Override
    public boolean isIdle() {
        return queue.isEmpty();
    }

    /** Acquires locks at once if they are free, or enqueues the call. */
    void acquire(CommandSender client, AcquireCommand command, long now) {
        AcquireException error = permanentError(client, command);
        if (error != null) {
            command.listener().onFailed(error);
            return;
        }
        command.params().targets().forEach(target -> limits.put(LockName.of(target), limit(target)));
        FakeWaiter waiter = new FakeWaiter(client, command, now + command.waitTimeout());
        queue.add(waiter);
        grantWaiters();
        if (command.waitTimeout() <= 0 && queue.contains(waiter)) {
            rejectWaiter(waiter, false);
        }
    }

    /** Fails the next acquire of this lock with an error. */
    void failNext(LockName lock, AcquireException error) {
        nextErrors.computeIfAbsent(lock, name -> new ArrayDeque<>()).add(error);
    }

    /** Returns the error of a call that can never be granted, or null. */
    private AcquireException permanentError(CommandSender client, AcquireCommand command) {
        if (closedClients.contains(client)) {
            return new ClosedException();
        }
        Loss loss = command.under() == null ? null : command.under().validity().loss();
        if (loss != null) {
            return new LeaseLostException(loss);
        }
        for (LockTarget target : command.params().targets()) {
            LockName lock = LockName.of(target);
            if (nextErrors.containsKey(lock) && !nextErrors.get(lock).isEmpty()) {
                return nextErrors.get(lock).remove();
            }
            AcquireException error = mismatchError(command, target);
            if (error != null) {
                return error;
            }
        }
        return null;
    }

    private AcquireException mismatchError(AcquireCommand command, LockTarget target) {
        LockName lock = LockName.of(target);
        int weight = FakeHold.weight(target);
        int limit = limit(target);
        Integer limitInUse = limitInUse(lock);
        if (weight > limit || (limitInUse != null && limitInUse != limit)) {
            return limitMismatch();
        }
        boolean isUpgrade = command.under() != null
                && holds(lock).stream()
                        .anyMatch(hold -> hold.leaseId().equals(command.under().leaseId()) && hold.weight() < weight);
        return isUpgrade
                ? new UpgradeDeniedException("the lease holds the lock in a weaker mode and cannot upgrade it", null)
                : null;
    }

    private static LimitMismatchException limitMismatch() {
        return new LimitMismatchException(
                "another limit or mode is in use on this lock, or the request exceeds its permits", null);
    }

    /** Returns the limit for a target: the limit in use if the target follows it, or the requested limit. */
    private int limit(LockTarget target) {
        LockName lock = LockName.of(target);
        int requested = FakeHold.limit(target);
        Integer limitInUse = limitInUse(lock);
        boolean isSemaphore =
                requested != FakeHold.FULL_WEIGHT && limitInUse != null && limitInUse != FakeHold.FULL_WEIGHT;
        boolean isFollowed = isSemaphore && (requested == 0 || setLimits.containsKey(lock));
        return isFollowed ? limitInUse : Math.max(requested, 1);
    }

    /** Returns the limit in use; null if the lock has neither holders nor waiters, and no set limit. */
    private Integer limitInUse(LockName lock) {
        boolean isIdle = holds(lock).isEmpty() && queueLength(lock) == 0;
        return isIdle ? setLimits.get(lock) : limits.get(lock);
    }

    /** Sets the limit of a semaphore, or removes the set limit if {@code limit} is 0. */
    void setLimit(CommandSender client, LockName lock, int limit, CompletableFuture<OptionalInt> future) {
        if (closedClients.contains(client)) {
            future.completeExceptionally(new ClosedException());
            return;
        }
        Integer previous = limit == 0 ? setLimits.get(lock) : limitInUse(lock);
        if (previous != null && previous == FakeHold.FULL_WEIGHT) {
            future.completeExceptionally(limitMismatch());
            return;
        }
        if (limit == 0) {
            setLimits.remove(lock);
        } else {
            setLimits.put(lock, limit);
            limits.put(lock, limit);
        }
        future.complete(previous == null ? OptionalInt.empty() : OptionalInt.of(previous));
        grantWaiters();
    }

    private List<FakeHold> holds(LockName lock) {
        return holdsByLock.getOrDefault(lock, List.of());
    }

    /** Removes a call from the queue because its caller has cancelled it. */
    void cancel(String requestId) {
        queue.removeIf(waiter -> waiter.command().params().requestId().equals(requestId));
        grantWaiters();
    }

    /** Releases the locks of one acquire. */
    void release(LeaseHandle handle, CompletableFuture<Void> requested) {
        CompletableFuture<Void> future = requested == null ? new CompletableFuture<>() : requested;
        if (!leases.containsKey(handle.leaseId())) {
            Loss loss = handle.validity().loss();
            future.completeExceptionally(new LeaseLostException(loss == null ? new Loss(LostReason.CLOSED) : loss));
            return;
        }
        for (LeaseHandle.LockGrant grant : handle.grants()) {
            List<FakeHold> holds = holdsByLock.get(grant.lock());
            holds.removeIf(hold -> hold.leaseId().equals(handle.leaseId()) && hold.removeEntry(handle.requestId()));
        }
        boolean isLast = holdsByLock.values().stream()
                .flatMap(List::stream)
                .noneMatch(hold -> hold.leaseId().equals(handle.leaseId()));
        if (isLast) {
            leases.remove(handle.leaseId()).validity().end(new Loss(LostReason.RELEASED));
        }
        future.complete(null);
        grantWaiters();
    }

    /** Ends all leases that hold a lock. Returns the number of leases that were ended. */
    int endLeases(LockName lock, Loss loss) {
        Set<String> leaseIds = new HashSet<>();
        holds(lock).forEach(hold -> leaseIds.add(hold.leaseId()));
        removeLeases(leaseIds, loss);
        return leaseIds.size();
    }

    /** Closes a client: ends its leases and fails its waiting calls. */
    void close(CommandSender client) {
        closedClients.add(client);
        List<FakeWaiter> waiters =
                queue.stream().filter(waiter -> waiter.client() == client).toList();
        queue.removeAll(waiters);
        waiters.forEach(waiter -> waiter.command().listener().onFailed(new ClosedException()));
        Set<String> leaseIds = new HashSet<>();
        leases.forEach((leaseId, lease) -> {
            if (lease.client() == client) {
                leaseIds.add(leaseId);
            }
        });
        removeLeases(leaseIds, new Loss(LostReason.CLOSED));
    }

    private void removeLeases(Set<String> leaseIds, Loss loss) {
        holdsByLock.values().forEach(holds -> holds.removeIf(hold -> leaseIds.contains(hold.leaseId())));
        leaseIds.forEach(leaseId -> leases.remove(leaseId).validity().end(loss));
        grantWaiters();
    }

    List<Holder> holders(LockName lock) {
        return holds(lock).stream().map(FakeHold::holder).toList();
    }

    int queueLength(LockName lock) {
        return (int) queue.stream().filter(waiter -> waiter.waitsFor(lock)).count();
    }

    /** Completes a future with the state of a lock, empty if it has neither holders nor waiters, and no set limit. */
    void getLockState(CommandSender client, LockName lock, CompletableFuture<Optional<LockState>> future) {
        if (closedClients.contains(client)) {
            future.completeExceptionally(new ClosedException());
            return;
        }
        Integer limit = limitInUse(lock);
        if (limit == null) {
            future.complete(Optional.empty());
            return;
        }
        List<Holder> holders = holders(lock);
        long lastFencingToken =
                holders.stream().mapToLong(Holder::fencingToken).max().orElse(lastToken);
        Optional<PermitUsage> permitUsage = limit == FakeHold.FULL_WEIGHT
                ? Optional.empty()
                : Optional.of(new PermitUsage(limit, usedWeight(lock), setLimits.containsKey(lock)));
        LockState state = new LockState(holders, queueLength(lock), lastFencingToken, Optional.empty(), permitUsage);
        future.complete(Optional.of(state));
    }

    /** Fails the waiting calls whose wait has timed out. */
    @Override
    public void onTick(long now) {
        List<FakeWaiter> expired =
                queue.stream().filter(waiter -> now >= waiter.waitDeadline()).toList();
        expired.forEach(waiter -> rejectWaiter(waiter, true));
    }

    private void rejectWaiter(FakeWaiter waiter, boolean hasWaited) {
        if (!queue.remove(waiter)) {
            // Its locks were granted meanwhile.
            return;
        }
        List<Holder> holders = waiter.locks().stream()
                .flatMap(lock -> holders(lock).stream())
                .limit(5)
                .toList();
        int waiterCount =
                waiter.locks().stream().mapToInt(this::queueLength).max().orElse(0);
        String message = waiter.locks() + " is held";
        waiter.command()
                .listener()
                .onFailed(
                        hasWaited
                                ? new WaitTimeoutException(message, holders, waiterCount, null, null)
                                : new HeldException(message, holders, waiterCount, null, null));
        grantWaiters();
    }

    /** Grants all calls that can be granted, in queue order. */
    private void grantWaiters() {
        Set<LockName> locksAhead = new HashSet<>();
        for (FakeWaiter waiter : List.copyOf(queue)) {
            AcquireException error = waiterError(waiter);
            boolean isFirst = waiter.locks().stream().noneMatch(locksAhead::contains);
            if (error != null) {
                queue.remove(waiter);
                waiter.command().listener().onFailed(error);
            } else if (isFirst && canGrant(waiter)) {
                queue.remove(waiter);
                grant(waiter);
            } else {
                locksAhead.addAll(waiter.locks());
            }
        }
        queue.forEach(this::notifyPosition);
    }

    /** Returns the error of a waiting call that can no longer be granted, or null. */
    private AcquireException waiterError(FakeWaiter waiter) {
        AcquireCommand command = waiter.command();
        Loss loss = command.under() == null ? null : command.under().validity().loss();
        if (loss != null) {
            return new LeaseLostException(loss);
        }
        // The limit may have been lowered.
        boolean exceedsLimit = command.params().targets().stream()
                .anyMatch(target -> FakeHold.weight(target) > limits.get(LockName.of(target)));
        return exceedsLimit ? limitMismatch() : null;
    }

    private boolean canGrant(FakeWaiter waiter) {
        return waiter.command().params().targets().stream().allMatch(target -> {
            LockName lock = LockName.of(target);
            boolean isReentry = holds(lock).stream().anyMatch(hold -> waiter.isUnder(hold.leaseId()));
            // A sum of exclusive weights would overflow.
            return isReentry || FakeHold.weight(target) <= limits.get(lock) - usedWeight(lock);
        });
    }

    private int usedWeight(LockName lock) {
        return holds(lock).stream().mapToInt(FakeHold::weight).sum();
    }

    private void grant(FakeWaiter waiter) {
        AcquireCommand command = waiter.command();
        String leaseId =
                command.under() == null ? FakeHold.newId() : command.under().leaseId();
        LeaseValidity validity = command.under() == null
                ? FakeHold.unlimitedValidity()
                : command.under().validity();
        leases.putIfAbsent(leaseId, new FakeLease(waiter.client(), validity));
        List<LeaseHandle.LockGrant> grants = command.params().targets().stream()
                .map(target -> new LeaseHandle.LockGrant(LockName.of(target), addHold(leaseId, target, command)))
                .toList();
        LeaseHandle handle = new LeaseHandle(leaseId, grants, command.params().requestId(), validity, waiter.client());
        command.listener().onGranted(handle);
    }

    private long addHold(String leaseId, LockTarget target, AcquireCommand command) {
        List<FakeHold> holds = holdsByLock.computeIfAbsent(LockName.of(target), lock -> new ArrayList<>());
        for (FakeHold hold : holds) {
            if (hold.leaseId().equals(leaseId)) {
                hold.addEntry(command.params().requestId(), FakeHold.weight(target));
                return hold.holder().fencingToken();
            }
        }
        lastToken++;
        holds.add(FakeHold.of(leaseId, target, command, lastToken));
        return lastToken;
    }

    private void notifyPosition(FakeWaiter waiter) {
        LockName lock = waiter.locks().get(0);
        List<FakeWaiter> waitersAhead = queue.subList(0, queue.indexOf(waiter));
        int position = 1
                + (int) waitersAhead.stream()
                        .filter(other -> other.waitsFor(lock))
                        .count();
        waiter.notifyPosition(
                new QueuePosition(position, queueLength(lock), holders(lock), Optional.empty(), Optional.empty()));
    }
}
