package main

import "time"

// visits are what the callers of one round have done.
type visits struct {
	length      time.Duration
	pairs       []int
	longestWait time.Duration
	handOffs    int
	lastHolder  int
}

// entered: a caller has the lock that all want. Called by whoever has it.
func (v *visits) entered(caller int, waited time.Duration) {
	v.longestWait = max(v.longestWait, waited)
	if caller != v.lastHolder {
		v.handOffs++
		v.lastHolder = caller
	}
}

// pairsPerSecond are acquires with their releases.
func (v visits) pairsPerSecond() float64 {
	sum := 0
	for _, count := range v.pairs {
		sum += count
	}
	return float64(sum) / v.length.Seconds()
}

func (v visits) handOffsPerSecond() float64 { return float64(v.handOffs) / v.length.Seconds() }

func (v visits) longestWaitMs() float64 { return float64(v.longestWait) / float64(time.Millisecond) }

// fairness is Jain's index: 1 if all had it as often, 1 / callers if one had it always.
func (v visits) fairness() float64 {
	sum, squares := 0.0, 0.0
	for _, count := range v.pairs {
		sum += float64(count)
		squares += float64(count) * float64(count)
	}
	if squares == 0 {
		return 0
	}
	return sum * sum / (float64(len(v.pairs)) * squares)
}
