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

/** One process, whose lines of output can be awaited. It is killed at the end of its test. */
public final class Program implements AutoCloseable {
    private static final long LIMIT_SECONDS = 20;
    /** Below those that the kernel gives to connections. */
    private static final int FIRST_PORT = 20_000;

    private static final int PORT_COUNT = 10_000;
    /** Another beginning for each run of the tests, as several may go on at a time. */
    private static final AtomicInteger PORTS =
            new AtomicInteger((int) (ProcessHandle.current().pid() * 97 % PORT_COUNT));

    private final Process process;
    private final BlockingQueue<Optional<String>> lines = new LinkedBlockingQueue<>();

    /** Starts it. */
    public Program(List<String> command) {
        // It ignores no signal, though whoever runs the tests may: nohup, or a shell in the background.
        List<String> words = new ArrayList<>(List.of("env", "--default-signal"));
        words.addAll(command);
        ProcessBuilder builder = new ProcessBuilder(words).redirectError(ProcessBuilder.Redirect.DISCARD);
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
            // It was killed.
        }
        lines.add(Optional.empty());
    }

    /** Waits for a line with the pattern. */
    public Matcher line(Pattern pattern) throws InterruptedException {
        while (true) {
            Optional<String> line = lines.poll(LIMIT_SECONDS, TimeUnit.SECONDS);
            if (line == null || line.isEmpty()) {
                throw new AssertionError("it has not said " + pattern);
            }
            Matcher found = pattern.matcher(line.get());
            if (found.find()) {
                return found;
            }
        }
    }

    /** Stops it, and waits until it stands still. */
    public void pause() throws InterruptedException {
        signal("STOP");
        while (!state().startsWith("T")) {
            Thread.onSpinWait();
        }
    }

    /** Lets it go on. */
    public void resume() throws InterruptedException {
        signal("CONT");
    }

    /** Asks it to end in good order. */
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

    /** Waits for its end; its exit code. */
    public int ended() throws InterruptedException {
        if (!process.waitFor(LIMIT_SECONDS, TimeUnit.SECONDS)) {
            throw new AssertionError("it does not end");
        }
        return process.exitValue();
    }

    /** Kills it, and waits for its end. */
    @Override
    public void close() {
        process.destroyForcibly().onExit().join();
    }

    /** A port that nobody listens on, and that no connection gets by itself. */
    public static int freePort() {
        while (true) {
            int port = FIRST_PORT + PORTS.getAndIncrement() % PORT_COUNT;
            try (ServerSocket one = new ServerSocket(port)) {
                return one.getLocalPort();
            } catch (IOException e) {
                // Somebody has it.
            }
        }
    }
}
