package dev.leasehold.testing;

import dev.leasehold.QueuePlace;
import dev.leasehold.internal.Ask;
import dev.leasehold.internal.LockName;
import dev.leasehold.internal.Orders;
import java.util.List;

/** A call in the line of a fake broker. */
final class FakeWaiter {
    private final Orders client;
    private final Ask ask;
    private final long until;
    private final List<LockName> locks;
    private QueuePlace told;

    FakeWaiter(Orders client, Ask ask, long until) {
        this.client = client;
        this.ask = ask;
        this.until = until;
        locks = ask.call().targets().stream().map(LockName::of).toList();
    }

    Orders client() {
        return client;
    }

    Ask ask() {
        return ask;
    }

    long until() {
        return until;
    }

    List<LockName> locks() {
        return locks;
    }

    boolean wants(LockName lock) {
        return locks.contains(lock);
    }

    boolean isUnder(String leaseId) {
        return ask.under() != null && ask.under().leaseId().equals(leaseId);
    }

    /** Tells a place that is news. */
    void tell(QueuePlace place) {
        if (!place.equals(told)) {
            told = place;
            ask.reply().place(place);
        }
    }
}
