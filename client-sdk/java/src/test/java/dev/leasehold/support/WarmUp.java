package dev.leasehold.support;

import dev.leasehold.Lease;
import dev.leasehold.LeaseholdClient;
import org.junit.jupiter.api.extension.BeforeAllCallback;
import org.junit.jupiter.api.extension.ExtensionContext;

/** Runs all operations of a client once before the tests, so that the tests do not measure the loading of classes. */
public final class WarmUp implements BeforeAllCallback {
    /** Holder of the single run: the first test class starts it, the others wait for its end. */
    private static final class Once {
        private static final boolean IS_VALID = runOperations();

        private static boolean runOperations() {
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
        if (!Once.IS_VALID) {
            throw new AssertionError("a lease was lost");
        }
    }
}
