// Package testbed starts real brokers and a real Redis as processes, and proxies that simulate network failures. The
// caller must stop the processes.
package testbed

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"
)

const startTimeout = 20 * time.Second

// FreePort returns a free port, below the range from which the system assigns ports to outgoing connections.
func FreePort() (int, error) {
	for {
		port := 20_000 + rand.IntN(10_000)
		listener, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err == nil {
			return port, listener.Close()
		}
		if !errors.Is(err, syscall.EADDRINUSE) {
			return 0, err
		}
	}
}

// Process is a running program. Callers can wait for its lines of output.
type Process struct {
	command  *exec.Cmd
	in       io.Writer
	lines    chan string
	exited   chan struct{}
	killOnce sync.Once
}

// Start starts a program.
func Start(env []string, program string, args ...string) (*Process, error) {
	command := exec.Command(program, args...)
	command.Env = append(os.Environ(), env...)
	command.Stderr = os.Stderr
	out, err := command.StdoutPipe()
	if err != nil {
		return nil, err
	}
	in, err := command.StdinPipe()
	if err != nil {
		return nil, err
	}
	if err := command.Start(); err != nil {
		return nil, err
	}
	p := &Process{command: command, in: in, lines: make(chan string, 10_000), exited: make(chan struct{})}
	go func() {
		defer close(p.exited)
		scanner := bufio.NewScanner(out)
		for scanner.Scan() {
			p.lines <- scanner.Text()
		}
		close(p.lines)
		// The exit status is in command.ProcessState.
		_ = command.Wait()
	}()
	return p, nil
}

// WriteLine writes a line to the standard input of the process.
func (p *Process) WriteLine(line string) error {
	_, err := fmt.Fprintln(p.in, line)
	return err
}

// WaitForLine waits for a line of output that matches the pattern, and returns the text of its last group, or the whole
// match if the pattern has no group.
func (p *Process) WaitForLine(pattern string) (string, error) {
	expression := regexp.MustCompile(pattern)
	timeout := time.After(startTimeout)
	for {
		select {
		case line, ok := <-p.lines:
			if !ok {
				return "", fmt.Errorf("the process ended without a line %q", pattern)
			}
			if groups := expression.FindStringSubmatch(line); groups != nil {
				return groups[len(groups)-1], nil
			}
		case <-timeout:
			return "", fmt.Errorf("no line %q within %s", pattern, startTimeout)
		}
	}
}

// Signal sends a signal to the process.
func (p *Process) Signal(number syscall.Signal) error { return p.command.Process.Signal(number) }

// Pause sends SIGSTOP, and waits until the process is stopped.
func (p *Process) Pause() error {
	if err := p.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	for until := time.Now().Add(startTimeout); ; {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.command.Process.Pid))
		if err != nil {
			return err
		}
		if _, state, _ := strings.Cut(string(stat), ") "); strings.HasPrefix(state, "T") {
			return nil
		}
		if time.Now().After(until) {
			return fmt.Errorf("process %d does not stop", p.command.Process.Pid)
		}
		runtime.Gosched()
	}
}

// Resume continues a stopped process.
func (p *Process) Resume() error { return p.Signal(syscall.SIGCONT) }

// WaitForExit waits for the end of the process and returns its exit code.
func (p *Process) WaitForExit() (int, error) {
	select {
	case <-p.exited:
		return p.command.ProcessState.ExitCode(), nil
	case <-time.After(startTimeout):
		return 0, fmt.Errorf("process %d does not end", p.command.Process.Pid)
	}
}

// Kill kills the process, and waits for its end.
func (p *Process) Kill() {
	p.killOnce.Do(func() {
		// The process may have ended before.
		_ = p.command.Process.Kill()
	})
	<-p.exited
}

// Broker is a broker process. A restart uses the same store and port.
type Broker struct {
	*Process
	Addr  string
	store string
}

// StartBroker starts a broker. Without a store it uses its embedded store.
func StartBroker(store string) (*Broker, error) {
	port, err := FreePort()
	if err != nil {
		return nil, err
	}
	b := &Broker{Addr: fmt.Sprintf("127.0.0.1:%d", port), store: store}
	return b, b.start()
}

func (b *Broker) start() error {
	args := []string{"dev"}
	if b.store != "" {
		// An empty store of another kind may have lost leases, so the broker would grant nothing at first. A
		// broker that does not wait for its store ends if the store does not answer in time, as it may on a busy
		// machine.
		args = []string{"serve", "--store", b.store, "--trust-empty-store", "--wait-for-store"}
	}
	binary, err := serverBinary()
	if err != nil {
		return err
	}
	args = append(args, "--listen", b.Addr, "--admin-listen", "127.0.0.1:0", "--log", "off")
	if b.Process, err = Start(nil, binary, args...); err != nil {
		return err
	}
	_, err = b.WaitForLine("^listening on (.*)")
	return err
}

// URL returns the endpoint of the broker.
func (b *Broker) URL() string { return "http://" + b.Addr }

// Terminate sends SIGTERM.
func (b *Broker) Terminate() error { return b.Signal(syscall.SIGTERM) }

// Restart kills the broker and starts it again.
func (b *Broker) Restart() error {
	b.Kill()
	return b.start()
}

func serverBinary() (string, error) {
	binary := os.Getenv("LEASEHOLD_SERVER")
	if binary == "" {
		_, file, _, _ := runtime.Caller(0)
		binary = filepath.Join(filepath.Dir(file), "../../../../target/debug/leasehold-server")
	}
	if _, err := os.Stat(binary); err != nil {
		return "", fmt.Errorf("no broker binary; run cargo build -p leasehold-server, or set LEASEHOLD_SERVER: %w", err)
	}
	return binary, nil
}

// Redis is a redis-server process without persistence, with its own port and folder.
type Redis struct {
	*Process
	Addr string
	dir  string
}

// StartRedis starts a Redis server.
func StartRedis() (*Redis, error) {
	port, err := FreePort()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "leasehold-redis-")
	if err != nil {
		return nil, err
	}
	program := os.Getenv("STORE_SERVER")
	if program == "" {
		program = "redis-server"
	}
	r := &Redis{Addr: fmt.Sprintf("127.0.0.1:%d", port), dir: dir}
	r.Process, err = Start(nil, program, "--port", fmt.Sprint(port), "--bind", "127.0.0.1", "--save", "", "--dir", dir)
	if err != nil {
		return nil, err
	}
	_, err = r.WaitForLine("Ready to accept connections")
	return r, err
}

// URL returns the address of the server, as the store of a broker.
func (r *Redis) URL() string { return "redis://" + r.Addr + "/0" }

// Kill kills the server, and removes its folder.
func (r *Redis) Kill() {
	r.Process.Kill()
	// A remaining temporary folder does no harm.
	_ = os.RemoveAll(r.dir)
}

// Command sends a command and returns the first line of the response.
func (r *Redis) Command(words ...string) (string, error) {
	connection, err := net.DialTimeout("tcp", r.Addr, 5*time.Second)
	if err != nil {
		return "", err
	}
	defer connection.Close()
	command := fmt.Sprintf("*%d\r\n", len(words))
	for _, word := range words {
		command += fmt.Sprintf("$%d\r\n%s\r\n", len(word), word)
	}
	if _, err := connection.Write([]byte(command)); err != nil {
		return "", err
	}
	return bufio.NewReader(connection).ReadString('\n')
}
