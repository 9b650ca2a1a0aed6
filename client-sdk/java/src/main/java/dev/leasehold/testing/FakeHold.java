package dev.leasehold.testing;

import dev.leasehold.Holder;
import dev.leasehold.internal.Ask;
import dev.leasehold.internal.Trust;
import dev.leasehold.v1.LockMode;
import dev.leasehold.v1.LockTarget;
import java.time.Duration;
import java.time.Instant;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.UUID;

/** A lock of a fake broker in the hands of a lease. */
final class FakeHold {
    /** All of a lock: an exclusive holder takes it, a shared one takes 1 of it. */
    private static final int WHOLE = 1 << 30;

    private static final Duration TTL_DEFAULT = Duration.ofSeconds(10);

    private final int limit;
    private final Holder holder;
    /** One for each entry, with what it weighs. */
    private final Map<String, Integer> entries = new HashMap<>();

    private FakeHold(int limit, Holder holder) {
        this.limit = limit;
        this.holder = holder;
    }

    static FakeHold of(String leaseId, LockTarget one, int limit, Ask ask, long fencingToken) {
        dev.leasehold.v1.Owner owner = ask.call().request().getOwner();
        Holder holder = new Holder(leaseId, owner.getId(), owner.getReason(), fencingToken, Instant.now(), TTL_DEFAULT);
        FakeHold hold = new FakeHold(limit, holder);
        hold.enter(ask.call().requestId(), weight(one));
        return hold;
    }

    static String freshId() {
        return UUID.randomUUID().toString();
    }

    /** Trust that only ends when somebody ends it. */
    static Trust endless() {
        return new Trust(Long.MAX_VALUE, 0);
    }

    /** What a target takes of its lock. */
    static int weight(LockTarget one) {
        return switch (one.getMode()) {
            case LOCK_MODE_SHARED -> 1;
            case LOCK_MODE_SEMAPHORE -> Math.max(one.getPermits(), 1);
            default -> WHOLE;
        };
    }

    /** How much its lock has; as much as is in use unless it says so. */
    static int limit(LockTarget one, List<FakeHold> holds) {
        if (one.getMode() != LockMode.LOCK_MODE_SEMAPHORE) {
            return WHOLE;
        }
        int inUse = holds.isEmpty() ? 1 : holds.get(0).limit;
        return one.getLimit() == 0 ? inUse : one.getLimit();
    }

    int limit() {
        return limit;
    }

    Holder holder() {
        return holder;
    }

    String leaseId() {
        return holder.leaseId();
    }

    /** As much as its strongest entry. */
    int weight() {
        return entries.values().stream().mapToInt(Integer::intValue).max().orElse(0);
    }

    void enter(String requestId, int weight) {
        entries.put(requestId, weight);
    }

    /** Takes out one entry; whether none is left. */
    boolean leave(String requestId) {
        entries.remove(requestId);
        return entries.isEmpty();
    }
}
