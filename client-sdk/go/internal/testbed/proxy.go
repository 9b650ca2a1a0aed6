package testbed

import (
	"net"
	"sync"
	"time"
)

// Way is which packets are meant.
type Way int

// The ways.
const (
	Nothing  Way = 0
	ToBroker Way = 1
	ToClient Way = 2
	Both     Way = ToBroker | ToClient
)

// Proxy is a TCP proxy before a broker: it cuts, swallows, delays and refuses.
type Proxy struct {
	listener net.Listener
	broker   string

	mu        sync.Mutex
	changed   *sync.Cond
	swallows  Way
	delay     time.Duration
	holdsBack bool
	refuses   bool
	lost      int
	opened    int
	open      map[net.Conn]bool
}

// StartProxy starts one before this address.
func StartProxy(broker string) (*Proxy, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := &Proxy{listener: listener, broker: broker, open: map[net.Conn]bool{}}
	p.changed = sync.NewCond(&p.mu)
	go p.accept()
	return p, nil
}

// URL is it as an endpoint.
func (p *Proxy) URL() string { return "http://" + p.listener.Addr().String() }

// Swallow loses what is sent that way, while connections stay open.
func (p *Proxy) Swallow(way Way) { p.set(func() { p.swallows = way }) }

// Delay keeps what the broker says for so long.
func (p *Proxy) Delay(delay time.Duration) { p.set(func() { p.delay = delay }) }

// HoldBack keeps what the broker says until it is called with false.
func (p *Proxy) HoldBack(holdsBack bool) {
	p.set(func() { p.holdsBack = holdsBack })
	p.changed.Broadcast()
}

// Refuse closes new connections at once.
func (p *Proxy) Refuse(refuses bool) { p.set(func() { p.refuses = refuses }) }

// Cut breaks every connection; how many.
func (p *Proxy) Cut() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	count := len(p.open) / 2
	for connection := range p.open {
		connection.Close()
	}
	return count
}

// Lost is how many bytes were swallowed.
func (p *Proxy) Lost() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.lost
}

// Opened is how many connections were opened.
func (p *Proxy) Opened() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.opened
}

// WaitLost waits until more than that was swallowed.
func (p *Proxy) WaitLost(before int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for p.lost <= before {
		p.changed.Wait()
	}
}

// Stop ends it.
func (p *Proxy) Stop() {
	p.listener.Close()
	p.Cut()
}

func (p *Proxy) waitForRelease() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for p.holdsBack {
		p.changed.Wait()
	}
}

func (p *Proxy) set(change func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change()
}

func (p *Proxy) accept() {
	for {
		near, err := p.listener.Accept()
		if err != nil {
			return
		}
		p.mu.Lock()
		p.opened++
		refuses := p.refuses
		p.mu.Unlock()
		if refuses {
			near.Close()
			continue
		}
		go p.serve(near)
	}
}

func (p *Proxy) serve(near net.Conn) {
	far, err := net.Dial("tcp", p.broker)
	if err != nil {
		near.Close()
		return
	}
	p.set(func() { p.open[near], p.open[far] = true, true })
	done := make(chan struct{}, 2)
	go p.pump(near, far, ToBroker, done)
	go p.pump(far, near, ToClient, done)
	<-done
	near.Close()
	far.Close()
	p.set(func() {
		delete(p.open, near)
		delete(p.open, far)
	})
}

type late struct {
	at   time.Time
	data []byte
}

// pump passes on what one side says. The end of a side that is swallowed is not heard of by the other.
func (p *Proxy) pump(from, to net.Conn, way Way, done chan<- struct{}) {
	queue := make(chan late, 10_000)
	go func() {
		for one := range queue {
			time.Sleep(time.Until(one.at))
			if way == ToClient {
				p.waitForRelease()
			}
			if _, err := to.Write(one.data); err != nil {
				break
			}
		}
		done <- struct{}{}
	}()
	defer close(queue)
	for {
		data := make([]byte, 64<<10)
		count, err := from.Read(data)
		if err != nil {
			return
		}
		p.mu.Lock()
		delay := p.delay
		if way == ToBroker {
			delay = 0
		}
		isLost := p.swallows&way != 0
		if isLost {
			p.lost += count
			p.changed.Broadcast()
		}
		p.mu.Unlock()
		if !isLost {
			queue <- late{time.Now().Add(delay), data[:count]}
		}
	}
}
