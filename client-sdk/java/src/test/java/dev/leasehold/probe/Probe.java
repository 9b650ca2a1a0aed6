package dev.leasehold.probe;

import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import dev.leasehold.Holder;
import dev.leasehold.Lease;
import dev.leasehold.LeaseholdClient;
import dev.leasehold.LockRequest;
import dev.leasehold.Target;
import dev.leasehold.Tls;
import dev.leasehold.error.ConnectionException;
import dev.leasehold.error.LeaseholdException;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.Callable;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.function.BiFunction;

/**
 * Plays the scenarios of the suite with the Java client: one JSON command a line in, one JSON line out for each answer
 * and each event. The protocol is in tests/suite/README.md. It plays by the asynchronous calls, so any number can be
 * open; those that wait have the same core.
 */
public final class Probe {
    private static final Map<String, BiFunction<LockRequest, Duration, LockRequest>> TIMES = Map.of(
            "ttl_ms", LockRequest::ttl,
            "wait_ms", LockRequest::waitUpTo,
            "max_hold_ms", LockRequest::maxHold,
            "lock_delay_ms", LockRequest::lockDelay,
            "disconnect_grace_ms", LockRequest::disconnectGrace);

    /** A lease under its name. */
    private record Kept(Lease lease, List<Target> targets) {
        JsonObject state() {
            return Lines.lease(lease, targets);
        }
    }

    private final LeaseholdClient client;
    private final Map<String, Kept> leases = new ConcurrentHashMap<>();
    private final Map<Long, CompletableFuture<?>> open = new ConcurrentHashMap<>();

    private Probe(LeaseholdClient client) {
        this.client = client;
    }

    /** Connects and plays until its stdin ends. */
    public static void main(String[] arguments) throws Exception {
        Faults.watch(System.getenv("LEASEHOLD_LOG"));
        LeaseholdClient client;
        try {
            client = connect();
        } catch (ConnectionException e) {
            Lines.failed(e);
            System.exit(1);
            return;
        }
        Lines.ready();
        // No close: what is held is given back by the client's hook at the exit of the process.
        new Probe(client).play();
    }

    private static LeaseholdClient connect() throws IOException, InterruptedException {
        Tls tls = Tls.DEFAULT;
        if (System.getenv("LEASEHOLD_TLS_CA") != null) {
            tls = tls.ca(file("LEASEHOLD_TLS_CA"));
        }
        if (System.getenv("LEASEHOLD_TLS_CERT") != null) {
            tls = tls.certificate(file("LEASEHOLD_TLS_CERT"), file("LEASEHOLD_TLS_KEY"));
        }
        String tokenFile = System.getenv("LEASEHOLD_BEARER_TOKEN_FILE");
        return LeaseholdClient.builder(System.getenv().getOrDefault("LEASEHOLD_ENDPOINTS", ""))
                .owner(System.getenv("LEASEHOLD_OWNER"))
                .bearerToken(System.getenv("LEASEHOLD_BEARER_TOKEN"))
                .bearerTokenFile(tokenFile == null ? null : Path.of(tokenFile))
                .allowInsecureToken(System.getenv("LEASEHOLD_ALLOW_INSECURE_TOKEN") != null)
                .tls(tls)
                .releaseAtExit(true)
                .connect();
    }

    private static byte[] file(String variable) throws IOException {
        return Files.readAllBytes(Path.of(System.getenv(variable)));
    }

    private void play() throws IOException, InterruptedException {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            obey(JsonParser.parseString(line).getAsJsonObject());
        }
    }

    private void obey(JsonObject command) throws InterruptedException {
        switch (command.get("do").getAsString()) {
            case "version" -> Lines.answer(command, Lines.version());
            case "acquire" -> acquire(command);
            case "try_acquire" -> tryAcquire(command);
            case "cancel" -> cancel(command);
            case "release" -> release(command);
            case "state" -> state(command);
            case "observe" -> inThread(command, () -> observe(command));
            case "block" -> {
                // The thread of the program's own code.
                Thread.sleep(command.get("ms").getAsLong());
                Lines.answer(command, new JsonObject());
            }
            case "shutdown" ->
                inThread(command, () -> {
                    client.close();
                    return new JsonObject();
                });
            // Releases and hooks of exit are left out.
            case "exit" -> Runtime.getRuntime().halt(0);
            default -> throw new IllegalArgumentException("no such command: " + command);
        }
    }

    private void acquire(JsonObject command) {
        try {
            CompletableFuture<Lease> call = lock(command).acquireAsync();
            begun(command, call);
            told(command, call, lease -> kept(command, lease));
        } catch (LeaseholdException e) {
            Lines.fail(command, e);
        }
    }

    private void tryAcquire(JsonObject command) {
        CompletableFuture<Optional<Lease>> call = lock(command).tryAcquireAsync();
        begun(command, call);
        told(command, call, lease -> lease.map(one -> kept(command, one)).orElse(null));
    }

    private void begun(JsonObject command, CompletableFuture<?> call) {
        long id = command.get("id").getAsLong();
        open.put(id, call);
        call.whenComplete((result, error) -> open.remove(id));
    }

    private static <T> void told(
            JsonObject command, CompletableFuture<T> call, java.util.function.Function<T, JsonElement> as) {
        call.whenComplete((result, error) -> {
            if (error == null) {
                Lines.answer(command, as.apply(result));
            } else {
                Lines.fail(command, error);
            }
        });
    }

    private void cancel(JsonObject command) {
        // It may have ended by now.
        CompletableFuture<?> call = open.get(command.get("call").getAsLong());
        if (call != null) {
            call.cancel(true);
        }
        Lines.answer(command, new JsonObject());
    }

    private void release(JsonObject command) {
        Kept kept = leases.get(command.get("lease").getAsString());
        told(command, kept.lease.releaseAsync(), nothing -> new JsonObject());
    }

    private void state(JsonObject command) {
        double at = Lines.now();
        Lines.answer(command, at, leases.get(command.get("lease").getAsString()).state());
    }

    private JsonObject observe(JsonObject command) throws InterruptedException {
        String job = command.get("lock").getAsString();
        Optional<Holder> leader = client.election(job).observe().next();
        JsonObject observed = new JsonObject();
        observed.add("holder", leader.map(Lines::holder).orElse(null));
        return observed;
    }

    private static void inThread(JsonObject command, Callable<JsonObject> what) {
        Thread thread = new Thread(() -> {
            try {
                Lines.answer(command, what.call());
            } catch (LeaseholdException e) {
                Lines.fail(command, e);
            } catch (Exception e) {
                Faults.end(e);
            }
        });
        thread.setDaemon(true);
        thread.start();
    }

    private LockRequest lock(JsonObject command) {
        List<Target> targets = targets(command);
        LockRequest lock = targets.size() == 1 ? client.lock(targets.get(0)) : client.lockAll(targets);
        for (Map.Entry<String, BiFunction<LockRequest, Duration, LockRequest>> time : TIMES.entrySet()) {
            if (Lines.has(command, time.getKey())) {
                Duration value = Duration.ofMillis(command.get(time.getKey()).getAsLong());
                lock = time.getValue().apply(lock, value);
            }
        }
        if (Lines.has(command, "reason")) {
            lock = lock.reason(command.get("reason").getAsString());
        }
        if (Lines.has(command, "under")) {
            lock = lock.under(leases.get(command.get("under").getAsString()).lease);
        }
        return lock.onQueue(place -> Lines.queued(command, place));
    }

    private static List<Target> targets(JsonObject command) {
        List<Target> targets = new ArrayList<>();
        for (JsonElement one : command.getAsJsonArray("targets")) {
            targets.add(target(one.getAsJsonObject()));
        }
        return targets;
    }

    private static Target target(JsonObject one) {
        Target target = Target.of(one.get("name").getAsString());
        if (Lines.has(one, "namespace")) {
            target = target.namespace(one.get("namespace").getAsString());
        }
        return switch (Lines.has(one, "mode") ? one.get("mode").getAsString() : "") {
            case "shared" -> target.shared();
            case "semaphore" ->
                target.permits(
                        one.get("permits").getAsInt(),
                        Lines.has(one, "limit") ? one.get("limit").getAsInt() : 0);
            default -> target;
        };
    }

    private JsonObject kept(JsonObject command, Lease lease) {
        Kept kept = new Kept(lease, targets(command));
        String name = command.get("as").getAsString();
        leases.put(name, kept);
        lease.onLost(loss -> Lines.lost(name, loss));
        return kept.state();
    }
}
