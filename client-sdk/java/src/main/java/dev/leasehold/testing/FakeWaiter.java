package dev.leasehold.testing;

import dev.leasehold.QueuePosition;
import dev.leasehold.internal.AcquireCommand;
import dev.leasehold.internal.CommandSender;
import dev.leasehold.internal.LockName;
import java.util.List;

/** A call in the queue of a fake broker. */
final class FakeWaiter {
    private final CommandSender client;
    private final AcquireCommand command;
    private final long waitDeadline;
    private final List<LockName> locks;
    private QueuePosition lastPosition;

    FakeWaiter(CommandSender client, AcquireCommand command, long waitDeadline) {
        this.client = client;
        this.command = command;
        this.waitDeadline = waitDeadline;
        locks = command.params().targets().stream().map(LockName::of).toList();
    }

    CommandSender client() {
        return client;
    }

    AcquireCommand command() {
        return command;
    }

    long waitDeadline() {
        return waitDeadline;
    }

    List<LockName> locks() {
        return locks;
    }

    boolean waitsFor(LockName lock) {
        return locks.contains(lock);
    }

    boolean isUnder(String leaseId) {
        return command.under() != null && command.under().leaseId().equals(leaseId);
    }

    /** Sends the queue position to the caller if it has changed. */
    void notifyPosition(QueuePosition position) {
        if (!position.equals(lastPosition)) {
            lastPosition = position;
            command.listener().onQueuePosition(position);
        }
    }
}
