package dev.leasehold.support;

import dev.leasehold.Lease;
import dev.leasehold.LeaseholdClient;
import org.junit.jupiter.api.extension.BeforeAllCallback;
import org.junit.jupiter.api.extension.ExtensionContext;

/**
 * Before all tests a client does once what clients do: their times are not those of a runtime that loads its classes.
 */
public final class WarmUp implements BeforeAllCallback {
    /** Loaded by the first class of tests; the others wait for it. */
    private static final class Once {
        private static final boolean IS_DONE = isDone();

        private static boolean isDone() {
            try (Redis redis = new Redis();
                    Broker first = Broker.start(redis);
                    Broker second = Broker.start(redis);
                    LeaseholdClient client = LeaseholdClient.connect(first.url() + "," + second.url());
                    Lease lease = client.acquire("a")) {
                first.kill();
                client.acquire("b").close();
                return lease.isValid();
            } catch (Exception e) {
                throw new AssertionError(e);
            }
        }
    }

    @Override
    public void beforeAll(ExtensionContext context) {
        if (!Once.IS_DONE) {
            throw new AssertionError("a lease was lost");
        }
    }
}
