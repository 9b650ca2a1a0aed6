package main

import "time"

// roundResult is the result of one round.
type roundResult struct {
	length      time.Duration
	pairs       []int
	longestWait time.Duration
	handOffs    int
	lastHolder  int
}

// recordAcquire records that a caller has acquired the shared lock. Only the holder may call it.
func (r *roundResult) recordAcquire(caller int, waited time.Duration) {
	r.longestWait = max(r.longestWait, waited)
	if caller != r.lastHolder {
		r.handOffs++
		r.lastHolder = caller
	}
}

// pairsPerSecond returns the number of acquires, each with its release, per second.
func (r roundResult) pairsPerSecond() float64 {
	sum := 0
	for _, count := range r.pairs {
		sum += count
	}
	return float64(sum) / r.length.Seconds()
}

func (r roundResult) handOffsPerSecond() float64 { return float64(r.handOffs) / r.length.Seconds() }

func (r roundResult) longestWaitMs() float64 {
	return float64(r.longestWait) / float64(time.Millisecond)
}

// fairness returns Jain's index of the pairs per caller: 1 if all callers have the same number, 1 / callers if one
// caller has all.
func (r roundResult) fairness() float64 {
	sum, squares := 0.0, 0.0
	for _, count := range r.pairs {
		sum += float64(count)
		squares += float64(count) * float64(count)
	}
	if squares == 0 {
		return 0
	}
	return sum * sum / (float64(len(r.pairs)) * squares)
}
