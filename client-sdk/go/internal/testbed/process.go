// Package testbed has real brokers and a real Redis, as processes that whoever starts them ends, and a network
// between them that fails.
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

const startLimit = 20 * time.Second

// FreePort is one that nobody listens on, below those that the system gives to connections by itself.
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

// Process is one whose lines of output can be awaited.
type Process struct {
	command *exec.Cmd
	in      io.Writer
	lines   chan string
	ended   chan struct{}
	killing sync.Once
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
	p := &Process{command: command, in: in, lines: make(chan string, 10_000), ended: make(chan struct{})}
	go func() {
		defer close(p.ended)
		scanner := bufio.NewScanner(out)
		for scanner.Scan() {
			p.lines <- scanner.Text()
		}
		close(p.lines)
		// How it has ended is in its state.
		_ = command.Wait()
	}()
	return p, nil
}

// Say writes a line to its input.
func (p *Process) Say(line string) error {
	_, err := fmt.Fprintln(p.in, line)
	return err
}

// Line waits for a line with the pattern; what its first group has found.
func (p *Process) Line(pattern string) (string, error) {
	wanted := regexp.MustCompile(pattern)
	limit := time.After(startLimit)
	for {
		select {
		case line, ok := <-p.lines:
			if !ok {
				return "", fmt.Errorf("it ended without a line %q", pattern)
			}
			if found := wanted.FindStringSubmatch(line); found != nil {
				return found[len(found)-1], nil
			}
		case <-limit:
			return "", fmt.Errorf("no line %q within %s", pattern, startLimit)
		}
	}
}

// Signal sends it a signal.
func (p *Process) Signal(number syscall.Signal) error { return p.command.Process.Signal(number) }

// Pause stops it, and waits until it stands still.
func (p *Process) Pause() error {
	if err := p.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	for until := time.Now().Add(startLimit); ; {
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

// Resume lets it go on.
func (p *Process) Resume() error { return p.Signal(syscall.SIGCONT) }

// Ended waits for its end; its exit code.
func (p *Process) Ended() (int, error) {
	select {
	case <-p.ended:
		return p.command.ProcessState.ExitCode(), nil
	case <-time.After(startLimit):
		return 0, fmt.Errorf("process %d does not end", p.command.Process.Pid)
	}
}

// Kill kills it, and waits for its end.
func (p *Process) Kill() {
	p.killing.Do(func() {
		// It may have ended by itself.
		_ = p.command.Process.Kill()
	})
	<-p.ended
}

// Broker is one on a store; on the same port when it is started again.
type Broker struct {
	*Process
	Addr  string
	store string
}

// StartBroker starts one; without a store on its embedded one.
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
	_, err = b.Line("^listening on (.*)")
	return err
}

// URL is its endpoint.
func (b *Broker) URL() string { return "http://" + b.Addr }

// Terminate asks it to stop.
func (b *Broker) Terminate() error { return b.Signal(syscall.SIGTERM) }

// Restart kills it and starts it again.
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
		return "", fmt.Errorf("no broker: cargo build -p leasehold-server, or set LEASEHOLD_SERVER: %w", err)
	}
	return binary, nil
}

// Redis is a redis-server without persistence, on a port and in a folder of its own.
type Redis struct {
	*Process
	Addr string
	dir  string
}

// StartRedis starts one.
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
	_, err = r.Line("Ready to accept connections")
	return r, err
}

// URL is it as a broker's store.
func (r *Redis) URL() string { return "redis://" + r.Addr + "/0" }

// Kill kills it, and removes its folder.
func (r *Redis) Kill() {
	r.Process.Kill()
	// A folder that stays in the place for temporary ones harms nobody.
	_ = os.RemoveAll(r.dir)
}

// Command runs a command by hand; the first line of the answer.
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
