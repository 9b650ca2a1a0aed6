package dev.leasehold.support;

import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.regex.Pattern;

/** A broker process on a store. It keeps its port when it is restarted. */
public final class Broker implements AutoCloseable {
    private static final Pattern LISTENING = Pattern.compile("^listening on (\\S+)");

    private final List<String> store;
    private final int port = Program.freePort();
    private Program program;

    /** Starts a broker on the memory store. */
    public static Broker start() throws InterruptedException {
        return new Broker(List.of("dev"));
    }

    /** Starts a broker on a Redis. */
    public static Broker start(Redis redis) throws InterruptedException {
        // An empty store of another kind may have lost leases, so the broker would grant nothing at first. A broker
        // that does not wait for its store exits if the store does not answer in time, as may happen on a busy machine.
        return new Broker(List.of("serve", "--store", redis.url(), "--trust-empty-store", "--wait-for-store"));
    }

    private Broker(List<String> store) throws InterruptedException {
        this.store = store;
        program = startProcess();
    }

    private static String binary() {
        String path = System.getenv().getOrDefault("LEASEHOLD_SERVER", "../../target/debug/leasehold-server");
        if (!Files.isRegularFile(Path.of(path))) {
            throw new AssertionError(path + " is missing: cargo build -p leasehold-server, or set LEASEHOLD_SERVER");
        }
        return path;
    }

    private Program startProcess() throws InterruptedException {
        List<String> command = new ArrayList<>(List.of(binary()));
        command.addAll(store);
        command.addAll(List.of("--listen", address(), "--admin-listen", "127.0.0.1:0", "--log", "off"));
        Program process = new Program(command);
        process.awaitLine(LISTENING);
        return process;
    }

    public int port() {
        return port;
    }

    public String address() {
        return "127.0.0.1:" + port;
    }

    /** Returns the URL of the broker. */
    public String url() {
        return "http://" + address();
    }

    public Program program() {
        return program;
    }

    /** Starts a new process on the same port. */
    public void restart() throws InterruptedException {
        program.close();
        program = startProcess();
    }

    /** Kills the process. It may be restarted. */
    public void kill() {
        program.close();
    }

    @Override
    public void close() {
        kill();
    }
}
