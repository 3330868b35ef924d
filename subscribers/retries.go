package subscribers

import (
	"fmt"
	"net/http"
	"slices"
	"time"

	"spendhook/internal/invalid"
)

const (
	// maxStopOn bounds Subscriber.StopOn, and maxRetries Subscriber.RetrySchedule.
	maxStopOn  = 8
	maxRetries = 30
	// maxRetrying is the longest time from the first attempt of a delivery to the last.
	maxRetrying = 30 * 24 * time.Hour
)

// Retries returns the wait after each failed attempt, as RetrySchedule says; nil: the schedule of the daemon.
func (s Subscriber) Retries() []time.Duration {
	var waits []time.Duration
	for _, seconds := range s.RetrySchedule {
		waits = append(waits, time.Duration(seconds)*time.Second)
	}
	return waits
}

// RetryTime returns the sum of Retries.
func (s Subscriber) RetryTime() (total time.Duration) {
	for _, wait := range s.Retries() {
		total += wait
	}
	return total
}

// checkRetrySchedule adds to problems. The schedule must end within a time, since an event that waits for longer than
// its retention is not listed.
func checkRetrySchedule(problems *invalid.Error, seconds []int, within time.Duration) {
	if len(seconds) > maxRetries {
		problems.Add("retrySchedule", "TOO_LONG", "has %d waits, more than %d", len(seconds), maxRetries)
		return
	}
	most := int(min(within, maxRetrying) / time.Second)
	total := 0
	for i, wait := range seconds {
		if wait < 1 || wait > int(maxRetrying/time.Second) {
			problems.Add(fmt.Sprintf("/retrySchedule/%d", i), "OUT_OF_RANGE", "must be 1 to %d seconds", int(maxRetrying/time.Second))
			return
		}
		total += wait
	}
	if total > most {
		problems.Add("retrySchedule", "OUT_OF_RANGE", "takes %d seconds in all, and at most %d are allowed", total, most)
	}
}

// hasMeaning are statuses that mean the same of every receiver: the attempt may succeed later, or the endpoint is gone.
var hasMeaning = []int{
	http.StatusRequestTimeout, http.StatusGone, http.StatusMisdirectedRequest, http.StatusTooEarly, http.StatusTooManyRequests,
}

func checkStopOn(problems *invalid.Error, statuses []int) {
	if len(statuses) > maxStopOn {
		problems.Add("stopOn", "TOO_LONG", "has %d statuses, more than %d", len(statuses), maxStopOn)
		return
	}
	for i, status := range statuses {
		field := fmt.Sprintf("/stopOn/%d", i)
		switch {
		case status < 400 || status > 499 || slices.Contains(hasMeaning, status):
			problems.Add(field, "INVALID", "must be a status from 400 to 499, and none of 408, 410, 421, 425 and 429")
		case slices.Contains(statuses[:i], status):
			problems.Add(field, "INVALID", "%d is in the list already", status)
		}
	}
}
