package testbed

import (
	"net"
	"sync"
	"time"
)

// Direction is a set of directions in which packets flow.
type Direction int

// Directions of the data that Drop drops.
const (
	None     Direction = 0
	ToBroker Direction = 1
	ToClient Direction = 2
	Both     Direction = ToBroker | ToClient
)

// Proxy is a TCP proxy in front of a broker. It can break, drop, delay and refuse connections or data.
type Proxy struct {
	listener net.Listener
	broker   string

	mu            sync.Mutex
	changed       *sync.Cond
	dropping      Direction
	delay         time.Duration
	isBlocked     bool
	isRefusing    bool
	droppedBytes  int
	acceptedCount int
	connections   map[net.Conn]bool
}

// StartProxy starts a proxy in front of the broker at this address.
func StartProxy(broker string) (*Proxy, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := &Proxy{listener: listener, broker: broker, connections: map[net.Conn]bool{}}
	p.changed = sync.NewCond(&p.mu)
	go p.accept()
	return p, nil
}

// URL returns the address of the proxy, as an endpoint of a client.
func (p *Proxy) URL() string { return "http://" + p.listener.Addr().String() }

// Drop drops the data in these directions, while connections stay open.
func (p *Proxy) Drop(direction Direction) { p.update(func() { p.dropping = direction }) }

// Delay delays the data from the broker by this time.
func (p *Proxy) Delay(delay time.Duration) { p.update(func() { p.delay = delay }) }

// BlockResponses retains the data from the broker until BlockResponses(false) is called.
func (p *Proxy) BlockResponses(isBlocked bool) {
	p.update(func() { p.isBlocked = isBlocked })
	p.changed.Broadcast()
}

// RefuseConnections closes new connections at once.
func (p *Proxy) RefuseConnections(isRefusing bool) { p.update(func() { p.isRefusing = isRefusing }) }

// CloseConnections closes every connection, and returns their number.
func (p *Proxy) CloseConnections() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	count := len(p.connections) / 2
	for connection := range p.connections {
		connection.Close()
	}
	return count
}

// DroppedBytes returns the number of dropped bytes.
func (p *Proxy) DroppedBytes() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.droppedBytes
}

// AcceptedCount returns the number of accepted connections.
func (p *Proxy) AcceptedCount() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.acceptedCount
}

// WaitForDrop waits until more bytes than before were dropped.
func (p *Proxy) WaitForDrop(before int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for p.droppedBytes <= before {
		p.changed.Wait()
	}
}

// Stop closes the listener and all connections.
func (p *Proxy) Stop() {
	p.listener.Close()
	p.CloseConnections()
}

func (p *Proxy) waitUntilUnblocked() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for p.isBlocked {
		p.changed.Wait()
	}
}

func (p *Proxy) update(change func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change()
}

func (p *Proxy) accept() {
	for {
		clientConn, err := p.listener.Accept()
		if err != nil {
			return
		}
		p.mu.Lock()
		p.acceptedCount++
		isRefusing := p.isRefusing
		p.mu.Unlock()
		if isRefusing {
			clientConn.Close()
			continue
		}
		go p.serve(clientConn)
	}
}

func (p *Proxy) serve(clientConn net.Conn) {
	brokerConn, err := net.Dial("tcp", p.broker)
	if err != nil {
		clientConn.Close()
		return
	}
	p.update(func() { p.connections[clientConn], p.connections[brokerConn] = true, true })
	done := make(chan struct{}, 2)
	go p.forward(clientConn, brokerConn, ToBroker, done)
	go p.forward(brokerConn, clientConn, ToClient, done)
	<-done
	clientConn.Close()
	brokerConn.Close()
	p.update(func() {
		delete(p.connections, clientConn)
		delete(p.connections, brokerConn)
	})
}

type delayedData struct {
	sendAt time.Time
	data   []byte
}

// forward forwards the data of one direction. The end of the reading side closes both connections.
func (p *Proxy) forward(source, destination net.Conn, direction Direction, done chan<- struct{}) {
	queue := make(chan delayedData, 10_000)
	go func() {
		for packet := range queue {
			time.Sleep(time.Until(packet.sendAt))
			if direction == ToClient {
				p.waitUntilUnblocked()
			}
			if _, err := destination.Write(packet.data); err != nil {
				break
			}
		}
		done <- struct{}{}
	}()
	defer close(queue)
	for {
		data := make([]byte, 64<<10)
		count, err := source.Read(data)
		if err != nil {
			return
		}
		p.mu.Lock()
		delay := p.delay
		if direction == ToBroker {
			delay = 0
		}
		isDropped := p.dropping&direction != 0
		if isDropped {
			p.droppedBytes += count
			p.changed.Broadcast()
		}
		p.mu.Unlock()
		if !isDropped {
			queue <- delayedData{time.Now().Add(delay), data[:count]}
		}
	}
}
