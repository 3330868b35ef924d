package workqueue

import (
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"spendhook/dispatcher/schedule"
	"spendhook/internal/queues"
)

// Event is an event that is to be matched with subscribers.
type Event struct {
	ID    string
	Value string      // as package events stores it; "" when the event is gone or cannot be read
	Known []uuid.UUID // subscribers that have a delivery of the event already
	// Suspect: a replica was lost, perhaps by matching it. Call BeginSuspect before and EndSuspect after it is matched.
	Suspect bool
}

// Delivery is a delivery that waited, and is in flight now.
type Delivery struct {
	Subscriber uuid.UUID
	EventID    string
	Record     string // as package delivery encodes it; "" when there is none
	Value      string // the event, as package events stores it; "" when the event is gone or cannot be read
}

// Batch is work of one company that is to be started. Matched, Ended or EndJob must follow for each part of it, or
// Requeue.
type Batch struct {
	Company    uuid.UUID
	Token      string      // of the partition's owner
	Version    int64       // of the company's subscribers
	Backlogged []uuid.UUID // subscribers whose deliveries must wait behind others, or until they may start
	Paused     []uuid.UUID // the paused ones among Backlogged
	Asked      time.Time   // when the deliveries were asked for
	Events     []Event
	Deliveries []Delivery
	Jobs       []uuid.UUID
}

func (b *Batch) empty() bool { return len(b.Events)+len(b.Deliveries)+len(b.Jobs) == 0 }

// subscribers reads the version of a company's subscribers, and those whose deliveries wait.
func (b *Batch) subscribers(version, managed any) {
	b.Version, _ = strconv.ParseInt(text(version), 10, 64) // an absent version is 0
	list, _ := managed.([]any)
	for _, member := range list {
		if id, paused := strings.CutPrefix(text(member), queues.PausedMark); paused {
			b.Paused = append(b.Paused, parseID(id))
		} else {
			b.Backlogged = append(b.Backlogged, parseID(id))
		}
	}
}

// The parts of a stored event; lua/lib.lua of package events/layout describes it.
const (
	stateReady  = 'R'
	numberFrom  = 22
	headerBytes = 32
)

// numberOf is the number of a stored event in its company; 0 when it cannot be read.
func numberOf(value string) int64 {
	if len(value) < headerBytes {
		return 0
	}
	n, _ := strconv.ParseInt(value[numberFrom:headerBytes], 16, 64)
	return n
}

// isMatched reports whether a stored event is matched. A damaged one is not: it goes to the quarantine.
func isMatched(value string) bool {
	return len(value) >= headerBytes && value[0] != stateReady && strings.IndexByte("MSC", value[0]) >= 0
}

// readTurn reads the answer of turn.lua for a company: what is for the schedule, and the work.
func readTurn(t schedule.Turn, reply []any) (a schedule.Answer, b Batch) {
	b.Company = t.Company
	b.subscribers(reply[0], reply[1])
	a.Last = parseFloat(reply[2])
	events, _ := reply[3].([]any)
	for i := 0; i+3 < len(events); i += 4 {
		e := Event{ID: text(events[i+1]), Value: text(events[i+2]), Known: parseIDs(events[i+3])}
		if place := text(events[i]); place != "" {
			a.Events = append(a.Events, schedule.Event{Place: parseFloat(place), Number: numberOf(e.Value), ID: e.ID})
		}
		b.Events = append(b.Events, e)
	}
	endpoints, _ := reply[4].([]any)
	for i := 0; i+7 < len(endpoints); i += 8 {
		state, deliveries := readEndpoint(t.Endpoints[i/8].Endpoint, endpoints[i:i+8])
		a.Endpoints = append(a.Endpoints, state)
		b.Deliveries = append(b.Deliveries, deliveries...)
	}
	a.Complete = reply[5] == int64(0)
	return a, b
}

func readEndpoint(id uuid.UUID, reply []any) (schedule.State, []Delivery) {
	number := func(n int) int64 { v, _ := reply[n].(int64); return v }
	ms := func(n int) time.Duration { return time.Duration(number(n)) * time.Millisecond }
	state := schedule.State{
		Next: ms(0), Fails: int(number(1)), Wait: ms(2), Interval: time.Duration(parseFloat(reply[3]) * float64(time.Millisecond)),
		Burst: int(number(4)), Due: ms(5), Ordered: number(6)&1 != 0, Held: number(6)&2 != 0,
	}
	list, _ := reply[7].([]any)
	var deliveries []Delivery
	for i := 0; i+2 < len(list); i += 3 {
		deliveries = append(deliveries, Delivery{Subscriber: id, EventID: text(list[i]), Record: text(list[i+1]), Value: text(list[i+2])})
	}
	state.Started = len(deliveries)
	return state, deliveries
}

func text(v any) string {
	s, _ := v.(string)
	return s
}

func parseFloat(v any) float64 {
	f, err := strconv.ParseFloat(text(v), 64)
	if err != nil || math.IsNaN(f) {
		return 0
	}
	return f
}

func parseID(v any) uuid.UUID {
	id, _ := uuid.Parse(text(v)) // only our scripts write it
	return id
}

func parseIDs(v any) []uuid.UUID {
	list, _ := v.([]any)
	out := make([]uuid.UUID, 0, len(list))
	for _, e := range list {
		if id, err := uuid.Parse(text(e)); err == nil {
			out = append(out, id)
		}
	}
	return out
}
