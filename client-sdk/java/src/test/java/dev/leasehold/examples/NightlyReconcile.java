package dev.leasehold.examples;

import dev.leasehold.Lease;
import dev.leasehold.LeaseholdClient;
import dev.leasehold.error.LeaseLostException;
import dev.leasehold.error.WaitTimeoutException;
import java.time.Duration;
import java.util.List;

/** One worker at a time reconciles the orders; whoever comes later waits in line, or leaves it to the other. */
public final class NightlyReconcile {
    private NightlyReconcile() {}

    /** With the endpoints of the brokers. */
    public static void main(String[] arguments) throws InterruptedException {
        try (LeaseholdClient client = LeaseholdClient.connect(arguments[0])) {
            System.out.println(reconcile(client, List.of("17", "42")));
        }
    }

    /** What became of it, for people. */
    public static String reconcile(LeaseholdClient client, List<String> orders) throws InterruptedException {
        try (Lease lease = client.lock("orders/reconcile")
                .ttl(Duration.ofSeconds(30))
                .waitUpTo(Duration.ofSeconds(10))
                .reason("nightly reconcile")
                .onQueue(place -> System.out.println("place " + place.position() + " of " + place.queueLength()))
                .acquire()) {
            for (String order : orders) {
                // Between this look and the write the process may stand still: only the token protects the order.
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
