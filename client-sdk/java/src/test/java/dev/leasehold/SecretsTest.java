package dev.leasehold;

import static dev.leasehold.support.Conditions.awaitQueueLength;
import static dev.leasehold.support.Conditions.awaitResult;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.leasehold.error.LeaseholdException;
import dev.leasehold.support.Broker;
import dev.leasehold.support.Proxy;
import java.time.Duration;
import java.util.List;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.CompletableFuture;
import java.util.logging.Handler;
import java.util.logging.Level;
import java.util.logging.LogRecord;
import java.util.logging.Logger;
import java.util.logging.SimpleFormatter;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.parallel.Isolated;

/**
 * Test that no log down to the finest level, and no printable object, contains a secret. Isolated, because the test
 * changes log levels of the process.
 */
@Isolated
class SecretsTest {
    private static final String CANARY = "canary-7c1d20af";
    /** Request ids, lease tokens, and all other strings of that length. */
    private static final Pattern SECRET = Pattern.compile("[A-Za-z0-9_-]{30,}");

    private static final class CapturingHandler extends Handler {
        private final StringBuffer text = new StringBuffer();
        private final SimpleFormatter formatter = new SimpleFormatter();

        @Override
        public void publish(LogRecord entry) {
            text.append(formatter.format(entry));
        }

        @Override
        public void flush() {}

        @Override
        public void close() {}
    }

    @Test
    void secretsAreInNoOutput() throws Exception {
        Logger root = Logger.getLogger("");
        Level previousLevel = root.getLevel();
        List<Handler> handlers = List.of(root.getHandlers());
        handlers.forEach(root::removeHandler);
        CapturingHandler log = new CapturingHandler();
        log.setLevel(Level.ALL);
        root.addHandler(log);
        root.setLevel(Level.ALL);
        StringBuilder printed = new StringBuilder();
        String traffic;
        try {
            traffic = runOperations(printed);
        } finally {
            root.setLevel(previousLevel);
            root.removeHandler(log);
            handlers.forEach(root::addHandler);
        }
        String output = printed + log.text.toString();
        Set<String> secrets = new TreeSet<>();
        for (Matcher matcher = SECRET.matcher(traffic); matcher.find(); ) {
            secrets.add(matcher.group());
        }
        assertTrue(secrets.size() >= 4, "too few secrets recorded: " + secrets.size());
        assertTrue(output.contains("io.grpc"), "the log contains no messages of gRPC");
        assertEquals(List.of(), secrets.stream().filter(output::contains).toList());
        assertFalse(output.contains(CANARY));
        assertFalse(output.contains("OkHttpFrameLogger"), "the log contains frames");
    }

    private static String runOperations(StringBuilder printed) throws Exception {
        try (Broker broker = Broker.start();
                Proxy proxy = new Proxy(broker);
                LeaseholdClient client =
                        LeaseholdClient.builder(proxy.url()).bearerToken(CANARY).connect()) {
            Lease lease = client.acquire("a");
            LockRequest request = client.lock("a").waitUpTo(Duration.ZERO);
            LeaseholdException held = assertThrows(LeaseholdException.class, request::acquire);
            CompletableFuture<Lease> call = client.lock("a").acquireAsync();
            awaitQueueLength(client, "a", 1);
            call.cancel(true);
            Lease added = client.lock("b").under(lease).acquire();
            added.close();
            proxy.closeConnections();
            awaitResult(client.lock("c").acquireAsync()).close();
            for (Object printable : List.of(lease, added, request, client, call, held, Tls.DEFAULT)) {
                printed.append(printable).append('\n');
            }
            lease.close();
            return proxy.traffic();
        }
    }
}
