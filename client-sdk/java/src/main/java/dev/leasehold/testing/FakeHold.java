package dev.leasehold.testing;

import dev.leasehold.Holder;
import dev.leasehold.internal.AcquireCommand;
import dev.leasehold.internal.LeaseValidity;
import dev.leasehold.v1.LockMode;
import dev.leasehold.v1.LockTarget;
import java.time.Duration;
import java.time.Instant;
import java.util.HashMap;
import java.util.Map;
import java.util.UUID;

/** The hold of one lease on one lock of a fake broker. */
final class FakeHold {
    /** Weight of an exclusive holder, and limit of a lock that is no semaphore. A shared holder weighs 1. */
    static final int FULL_WEIGHT = 1 << 30;

    private static final Duration TTL_DEFAULT = Duration.ofSeconds(10);

    private final Holder holder;
    /** Weights of the entries, by request id. */
    private final Map<String, Integer> entries = new HashMap<>();

    private FakeHold(Holder holder) {
        this.holder = holder;
    }

    static FakeHold of(String leaseId, LockTarget target, AcquireCommand command, long fencingToken) {
        dev.leasehold.v1.Owner owner = command.params().request().getOwner();
        Holder holder = new Holder(leaseId, owner.getId(), owner.getReason(), fencingToken, Instant.now(), TTL_DEFAULT);
        FakeHold hold = new FakeHold(holder);
        hold.addEntry(command.params().requestId(), weight(target));
        return hold;
    }

    static String newId() {
        return UUID.randomUUID().toString();
    }

    /** Returns a validity that lasts until it is ended explicitly. */
    static LeaseValidity unlimitedValidity() {
        return new LeaseValidity(Long.MAX_VALUE, 0);
    }

    /** Returns the weight of a target. */
    static int weight(LockTarget target) {
        return switch (target.getMode()) {
            case LOCK_MODE_SHARED -> 1;
            case LOCK_MODE_SEMAPHORE -> Math.max(target.getPermits(), 1);
            default -> FULL_WEIGHT;
        };
    }

    /** Returns the limit that a target requests; 0: the limit in use. */
    static int limit(LockTarget target) {
        return target.getMode() == LockMode.LOCK_MODE_SEMAPHORE ? target.getLimit() : FULL_WEIGHT;
    }

    Holder holder() {
        return holder;
    }

    String leaseId() {
        return holder.leaseId();
    }

    /** Returns the weight of this hold, which is the largest weight of its entries. */
    int weight() {
        return entries.values().stream().mapToInt(Integer::intValue).max().orElse(0);
    }

    void addEntry(String requestId, int weight) {
        entries.put(requestId, weight);
    }

    /** Removes one entry. Returns true if no entry is left. */
    boolean removeEntry(String requestId) {
        entries.remove(requestId);
        return entries.isEmpty();
    }
}
