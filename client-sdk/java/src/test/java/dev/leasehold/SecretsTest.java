package dev.leasehold;

import static dev.leasehold.support.Line.soon;
import static dev.leasehold.support.Line.waitsFor;
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

/** No secret is in a log, down to the finest level, nor in anything that can be printed. Alone, as it turns logs up. */
@Isolated
class SecretsTest {
    private static final String CANARY = "canary-7c1d20af";
    /** Request ids and lease tokens, and whatever else is that long. */
    private static final Pattern SECRET = Pattern.compile("[A-Za-z0-9_-]{30,}");

    private static final class Kept extends Handler {
        private final StringBuffer text = new StringBuffer();
        private final SimpleFormatter form = new SimpleFormatter();

        @Override
        public void publish(LogRecord line) {
            text.append(form.format(line));
        }

        @Override
        public void flush() {}

        @Override
        public void close() {}
    }

    @Test
    void secretsAreInNoOutput() throws Exception {
        Logger root = Logger.getLogger("");
        Level before = root.getLevel();
        List<Handler> handlers = List.of(root.getHandlers());
        handlers.forEach(root::removeHandler);
        Kept log = new Kept();
        log.setLevel(Level.ALL);
        root.addHandler(log);
        root.setLevel(Level.ALL);
        StringBuilder printed = new StringBuilder();
        String said;
        try {
            said = play(printed);
        } finally {
            root.setLevel(before);
            root.removeHandler(log);
            handlers.forEach(root::addHandler);
        }
        String output = printed + log.text.toString();
        Set<String> secrets = new TreeSet<>();
        for (Matcher found = SECRET.matcher(said); found.find(); ) {
            secrets.add(found.group());
        }
        assertTrue(secrets.size() >= 4, "too little was seen: " + secrets.size());
        assertTrue(output.contains("io.grpc"), "the libraries log, too");
        assertEquals(List.of(), secrets.stream().filter(output::contains).toList());
        assertFalse(output.contains(CANARY));
        assertFalse(output.contains("OkHttpFrameLogger"), "the wire is not dumped");
    }

    private static String play(StringBuilder printed) throws Exception {
        try (Broker broker = Broker.start();
                Proxy proxy = new Proxy(broker);
                LeaseholdClient client =
                        LeaseholdClient.builder(proxy.url()).bearerToken(CANARY).connect()) {
            Lease lease = client.acquire("a");
            LockRequest request = client.lock("a").waitUpTo(Duration.ZERO);
            LeaseholdException held = assertThrows(LeaseholdException.class, request::acquire);
            CompletableFuture<Lease> call = client.lock("a").acquireAsync();
            waitsFor(client, "a", 1);
            call.cancel(true);
            Lease added = client.lock("b").under(lease).acquire();
            added.close();
            proxy.cut();
            soon(client.lock("c").acquireAsync()).close();
            for (Object shown : List.of(lease, added, request, client, call, held, Tls.DEFAULT)) {
                printed.append(shown).append('\n');
            }
            lease.close();
            return proxy.said();
        }
    }
}
