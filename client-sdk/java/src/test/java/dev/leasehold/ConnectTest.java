package dev.leasehold;

import static dev.leasehold.support.Conditions.awaitResult;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.leasehold.error.InsecureTokenException;
import dev.leasehold.error.InvalidCredentialException;
import dev.leasehold.error.InvalidEndpointException;
import dev.leasehold.error.InvalidOwnerException;
import dev.leasehold.error.NoEndpointException;
import dev.leasehold.error.UnreachableException;
import dev.leasehold.support.Broker;
import dev.leasehold.support.Program;
import dev.leasehold.support.Proxy;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/** Tests of creating clients, of their settings, and of the choice of endpoints. */
class ConnectTest {
    @ParameterizedTest
    @ValueSource(strings = {"ftp://broker:7070", "127.0.0.1:7070", "http://", "http://a b", "broker"})
    void anInvalidEndpointIsNamedInTheError(String endpoint) {
        InvalidEndpointException error = assertThrows(
                InvalidEndpointException.class,
                () -> LeaseholdClient.builder(endpoint).build());
        assertTrue(error.getMessage().contains(endpoint), error.getMessage());
    }

    @Test
    void invalidSettingsAreRejected() {
        LeaseholdClient.Builder builder = LeaseholdClient.builder("http://127.0.0.1:1");
        assertThrows(
                NoEndpointException.class, () -> LeaseholdClient.builder(" , ").build());
        assertThrows(InvalidOwnerException.class, () -> builder.owner("").build());
        assertThrows(
                InvalidOwnerException.class,
                () -> builder.owner("x".repeat(257)).build());
        builder.owner("x");
        InvalidCredentialException invalidCredential = assertThrows(
                InvalidCredentialException.class,
                () -> builder.bearerToken("s\u00e9cret").build());
        assertFalse(invalidCredential.getMessage().contains("cret\""), "the message contains the credential");
        Tls invalidCa = Tls.DEFAULT.ca("none".getBytes(StandardCharsets.UTF_8));
        assertThrows(
                IllegalArgumentException.class,
                () -> LeaseholdClient.builder("https://127.0.0.1:1")
                        .tls(invalidCa)
                        .build());
    }

    @ParameterizedTest
    @ValueSource(
            strings = {
                "http://127.0.0.1:1",
                "http://127.9.8.7",
                "http://[::1]:1",
                "http://localhost",
                "http://LocalHost:1",
                "https://10.1.2.3",
                "https://locks.example.com"
            })
    void aTokenIsSentToLoopbackAndOverTls(String url) {
        LeaseholdClient.builder(url).bearerToken("secret").build().close();
    }

    @ParameterizedTest
    @ValueSource(
            strings = {
                "http://10.1.2.3:1",
                "http://0.0.0.0",
                "http://[2001:db8::1]:1",
                "http://locks.example.com",
                "http://localhost.example.com",
                "http://127.0.0.1.example.com"
            })
    void aTokenIsSentUnencryptedToOtherHostsOnlyIfAllowed(String url, @TempDir Path dir) throws Exception {
        Path file = Files.writeString(dir.resolve("token"), "secret\n");
        String urls = "http://127.0.0.1:1," + url;
        for (LeaseholdClient.Builder builder : List.of(
                LeaseholdClient.builder(urls).bearerToken("secret"),
                LeaseholdClient.builder(urls).bearerTokenFile(file))) {
            InsecureTokenException insecureToken = assertThrows(InsecureTokenException.class, builder::build);
            assertTrue(insecureToken.getMessage().contains(url), insecureToken.getMessage());
            assertFalse(insecureToken.getMessage().contains("secret"), insecureToken.getMessage());
            builder.allowInsecureToken(true).build().close();
        }
        LeaseholdClient.builder(url).build().close();
    }

    @Test
    void aChangedTokenFileIsSentToTheBroker(@TempDir Path dir) throws Exception {
        Path file = dir.resolve("token");
        Files.writeString(file, "first\n");
        try (Broker broker = Broker.start();
                Proxy proxy = new Proxy(broker);
                LeaseholdClient client = LeaseholdClient.builder(proxy.url())
                        .bearerTokenFile(file)
                        .connect();
                Lease lease = client.acquire("a")) {
            Files.writeString(file, "second\n");
            long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(10);
            while (!proxy.traffic().contains("Bearer second")) {
                assertTrue(System.nanoTime() < deadline, "the new token was not sent");
                TimeUnit.MILLISECONDS.sleep(20);
            }
            assertTrue(lease.isValid());
        }
        assertThrows(
                InvalidCredentialException.class,
                () -> LeaseholdClient.builder("http://127.0.0.1:1")
                        .bearerTokenFile(dir.resolve("none"))
                        .build());
    }

    @Test
    void everyUnreachableEndpointIsNamedInTheError() {
        String first = "http://127.0.0.1:" + Program.freePort();
        String second = "http://127.0.0.1:" + Program.freePort();
        UnreachableException error =
                assertThrows(UnreachableException.class, () -> LeaseholdClient.connect(first + ", " + second));
        assertTrue(error.getMessage().contains(first) && error.getMessage().contains(second), error.getMessage());
    }

    @Test
    void theNextEndpointIsTriedImmediately() throws Exception {
        String unreachable = "http://127.0.0.1:" + Program.freePort();
        try (Broker broker = Broker.start();
                LeaseholdClient client = LeaseholdClient.connect(unreachable + "," + broker.url())) {
            assertTrue(client.acquire("a").isValid());
        }
    }

    @Test
    void aClientConnectsWithItsFirstCall() throws Exception {
        try (Broker broker = Broker.start();
                LeaseholdClient client = LeaseholdClient.builder(broker.url()).build()) {
            assertTrue(client.owner().endsWith(":" + ProcessHandle.current().pid()));
            assertTrue(client.tryAcquire("a").isPresent());
        }
    }

    @Test
    void moreThanAThousandLeasesUseSeveralStreams() throws Exception {
        try (Broker broker = Broker.start();
                Proxy proxy = new Proxy(broker);
                LeaseholdClient client = LeaseholdClient.connect(proxy.url())) {
            int connectionCount = proxy.connectionCount();
            // Requests are sent in batches, because a slow machine acknowledges no heartbeat for seconds while it
            // serves all requests at once.
            for (int batch = 0; batch < 1_001; batch += 91) {
                List<CompletableFuture<Lease>> calls = new ArrayList<>();
                for (int lock = batch; lock < batch + 91; lock++) {
                    calls.add(client.lock("lock-" + lock).acquireAsync());
                }
                for (CompletableFuture<Lease> call : calls) {
                    assertTrue(awaitResult(call).isValid());
                }
            }
            assertEquals(connectionCount + 1, proxy.connectionCount());
        }
    }

    @Test
    void connectingAClosedClientFails() throws Exception {
        try (Broker broker = Broker.start()) {
            LeaseholdClient client = LeaseholdClient.builder(broker.url()).build();
            client.close();
            client.close();
            assertThrows(UnreachableException.class, client::connect);
        }
    }
}
