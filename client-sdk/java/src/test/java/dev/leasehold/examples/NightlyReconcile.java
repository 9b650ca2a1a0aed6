package dev.leasehold.examples;

import dev.leasehold.Lease;
import dev.leasehold.LeaseholdClient;
import dev.leasehold.error.LeaseLostException;
import dev.leasehold.error.WaitTimeoutException;
import java.time.Duration;
import java.util.List;

/**
 * An example in which one worker at a time reconciles orders. Later workers wait in the queue for 10 s, and then leave
 * the work to the holder.
 */
public final class NightlyReconcile {
    private NightlyReconcile() {}

    /** Runs the example with the brokers' endpoints as its argument. */
    public static void main(String[] arguments) throws InterruptedException {
        try (LeaseholdClient client = LeaseholdClient.connect(arguments[0])) {
            System.out.println(reconcile(client, List.of("17", "42")));
        }
    }

    /** Returns the outcome, for people. */
    public static String reconcile(LeaseholdClient client, List<String> orders) throws InterruptedException {
        try (Lease lease = client.lock("orders/reconcile")
                .ttl(Duration.ofSeconds(30))
                .waitUpTo(Duration.ofSeconds(10))
                .reason("nightly reconcile")
                .onQueue(position ->
                        System.out.println("position " + position.position() + " of " + position.queueLength()))
                .acquire()) {
            for (String order : orders) {
                // The process may be suspended between this check and the write: only the fencing token protects the
                // order.
                lease.check();
                write(order, lease.fencingToken());
            }
            return "done: " + orders.size() + " orders";
        } catch (WaitTimeoutException e) {
            return "left to " + e.holders().get(0).owner();
        } catch (LeaseLostException e) {
            return "stopped: " + e.loss();
        }
    }

    private static void write(String order, long fencingToken) {
        System.out.println("order " + order + " with fencing token " + fencingToken);
    }
}
