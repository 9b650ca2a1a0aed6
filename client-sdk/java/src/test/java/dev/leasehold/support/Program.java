package dev.leasehold.support;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.net.ServerSocket;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/** A child process whose lines of output can be awaited. It is killed at the end of its test. */
public final class Program implements AutoCloseable {
    private static final long TIMEOUT_SECONDS = 20;
    /** First port of the range, which is below the kernel's ephemeral ports. */
    private static final int FIRST_PORT = 20_000;

    private static final int PORT_COUNT = 10_000;
    /**
     * Counter of ports. Its start value depends on the process id, because several test runs may be active at a time.
     */
    private static final AtomicInteger PORTS =
            new AtomicInteger((int) (ProcessHandle.current().pid() * 97 % PORT_COUNT));

    private final Process process;
    private final BlockingQueue<Optional<String>> lines = new LinkedBlockingQueue<>();

    /** Starts the process. */
    public Program(List<String> command) {
        // The process must not inherit ignored signals, as from nohup or a shell's background jobs.
        List<String> arguments = new ArrayList<>(List.of("env", "--default-signal"));
        arguments.addAll(command);
        ProcessBuilder builder = new ProcessBuilder(arguments).redirectError(ProcessBuilder.Redirect.DISCARD);
        try {
            process = builder.start();
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
        Thread reader = new Thread(this::read);
        reader.setDaemon(true);
        reader.start();
    }

    private void read() {
        try (BufferedReader output = process.inputReader()) {
            for (String line = output.readLine(); line != null; line = output.readLine()) {
                lines.add(Optional.of(line));
            }
        } catch (IOException e) {
            // The process was killed.
        }
        lines.add(Optional.empty());
    }

    /** Waits for a line of output that matches the pattern. */
    public Matcher awaitLine(Pattern pattern) throws InterruptedException {
        while (true) {
            Optional<String> line = lines.poll(TIMEOUT_SECONDS, TimeUnit.SECONDS);
            if (line == null || line.isEmpty()) {
                throw new AssertionError("the process printed no line with " + pattern);
            }
            Matcher matcher = pattern.matcher(line.get());
            if (matcher.find()) {
                return matcher;
            }
        }
    }

    /** Sends SIGSTOP, and waits until the process has stopped. */
    public void pause() throws InterruptedException {
        signal("STOP");
        while (!state().startsWith("T")) {
            Thread.onSpinWait();
        }
    }

    /** Sends SIGCONT. */
    public void resume() throws InterruptedException {
        signal("CONT");
    }

    /** Sends SIGTERM. */
    public void terminate() throws InterruptedException {
        signal("TERM");
    }

    private void signal(String name) throws InterruptedException {
        try {
            String pid = Long.toString(process.pid());
            new ProcessBuilder("kill", "-" + name, pid).start().waitFor();
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
    }

    private String state() {
        try {
            String stat = Files.readString(Path.of("/proc/" + process.pid() + "/stat"));
            return stat.substring(stat.lastIndexOf(')') + 2);
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
    }

    /** Waits for the end of the process, and returns its exit code. */
    public int awaitExit() throws InterruptedException {
        if (!process.waitFor(TIMEOUT_SECONDS, TimeUnit.SECONDS)) {
            throw new AssertionError("the process has not exited within " + TIMEOUT_SECONDS + " s");
        }
        return process.exitValue();
    }

    /** Kills the process, and waits for its end. */
    @Override
    public void close() {
        process.destroyForcibly().onExit().join();
    }

    /** Returns a port that is free, and that the kernel assigns to no connection. */
    public static int freePort() {
        while (true) {
            int port = FIRST_PORT + PORTS.getAndIncrement() % PORT_COUNT;
            try (ServerSocket socket = new ServerSocket(port)) {
                return socket.getLocalPort();
            } catch (IOException e) {
                // The port is in use.
            }
        }
    }
}
