package workqueue_test

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"spendhook/internal/partition"
)

// state is all keys of one partition and their values, by key without prefix.
type state map[string][]string

const readState = `local out = {}
for _, key in ipairs(redis.call('KEYS', ARGV[1] .. '*')) do
  local kind, value = redis.call('TYPE', key).ok
  if kind == 'string' then value = {redis.call('GET', key)}
  elseif kind == 'list' then value = redis.call('LRANGE', key, 0, -1)
  elseif kind == 'hash' then value = redis.call('HGETALL', key)
  elseif kind == 'set' then value = redis.call('SMEMBERS', key)
  else value = redis.call('ZRANGE', key, 0, -1, 'WITHSCORES') end
  out[#out + 1] = {string.sub(key, #ARGV[1] + 1), value}
end
return out`

// read reads the state of the test partition.
func (b *bench) read() state {
	b.tb.Helper()
	reply, err := b.client.Eval(b.ctx, readState, nil, partition.Prefix(testPartition)).Slice()
	if err != nil {
		b.tb.Fatalf("read the state: %v", err)
	}
	out := make(state)
	for _, entry := range reply {
		pair := entry.([]any)
		for _, v := range pair[1].([]any) {
			out[pair[0].(string)] = append(out[pair[0].(string)], v.(string))
		}
	}
	return out
}

// pairs reads a hash or a sorted set.
func (s state) pairs(key string) map[string]string {
	out := make(map[string]string)
	for i := 0; i+1 < len(s[key]); i += 2 {
		out[s[key][i]] = s[key][i+1]
	}
	return out
}

// scores reads a sorted set.
func (s state) scores(key string) map[string]float64 {
	out := make(map[string]float64)
	for member, text := range s.pairs(key) {
		out[member], _ = strconv.ParseFloat(text, 64)
	}
	return out
}

func (s state) number(key string) float64 {
	if len(s[key]) == 0 {
		return 0
	}
	f, _ := strconv.ParseFloat(s[key][0], 64)
	return f
}

// under lists the keys with a prefix, which it cuts off.
func (s state) under(prefix string) []string {
	var out []string
	for key := range s {
		if rest, ok := strings.CutPrefix(key, prefix); ok {
			out = append(out, rest)
		}
	}
	return out
}

// places lists the places of each item: events "company/id", deliveries
// "company/id/subscriber", jobs "j:company/job".
func (s state) places() map[string][]string {
	at := make(map[string][]string)
	add := func(thing, place string) { at[thing] = append(at[thing], place) }
	for _, company := range s.under("q:") {
		for _, id := range s["q:"+company] {
			add(company+"/"+strings.TrimPrefix(id, "!"), "ready queue")
		}
	}
	for _, e := range s.under("eq:") {
		company, sub, _ := strings.Cut(e, "/")
		for id := range s.pairs("eq:" + e) {
			add(company+"/"+id+"/"+sub, "endpoint queue")
		}
	}
	for _, company := range s.under("jq:") {
		for _, job := range s["jq:"+company] {
			add("j:"+company+"/"+job, "job queue")
		}
	}
	for member := range s.pairs("due") {
		if strings.HasPrefix(member, "j:") {
			add(member, "due set")
		}
	}
	for _, replica := range s.under("n:") {
		for thing := range s.pairs("n:" + replica) {
			if thing != "" && thing != "-" { // numbers of claims
				add(thing, "note of "+replica)
			}
		}
	}
	return at
}

// check returns what is wrong with the state, nil when nothing is.
func (s state) check() error {
	places := s.places()
	for thing, at := range places {
		if len(at) > 1 {
			return fmt.Errorf("%s is in %d places: %v", thing, len(at), at)
		}
	}
	for _, check := range []func(map[string][]string) error{
		s.checkEvents, s.checkDeliveries, s.checkInFlight, s.checkEndpoints, s.checkSchedule, s.checkJobs,
	} {
		if err := check(places); err != nil {
			return err
		}
	}
	return nil
}

// checkEvents checks that each ready event has a place, and the counters.
func (s state) checkEvents(places map[string][]string) error {
	pending := make(map[string]int)
	total := 0
	for _, e := range s.under("e:") {
		company, id, _ := strings.Cut(e, ":")
		switch s["e:"+e][0][0] {
		case 'R':
			if len(places[company+"/"+id]) != 1 {
				return fmt.Errorf("event %s/%s is lost", company, id)
			}
		case 'M':
		default:
			continue
		}
		pending[company]++
		total++
	}
	for _, company := range s.under("c:") {
		if kept, _ := strconv.Atoi(s.pairs("c:" + company)["pending"]); kept != pending[company] {
			return fmt.Errorf("company %s has %d pending events and counts %d", company, pending[company], kept)
		}
	}
	if kept := s.number("pending"); int(kept) != total {
		return fmt.Errorf("%d events are pending and %v are counted", total, kept)
	}
	return nil
}

// checkDeliveries checks that each live delivery has a place, and the counter of its event.
func (s state) checkDeliveries(places map[string][]string) error {
	for _, e := range s.under("d:") {
		live := 0
		for sub, record := range s.pairs("d:" + e) {
			if sub == "#" || sub == "!" || sub == "-" {
				continue
			}
			open, at := record[0] == 'P' || record[0] == 'R', places[e+"/"+sub]
			if open {
				live++
			}
			if open && len(at) == 0 {
				return fmt.Errorf("delivery %s/%s is lost: %s", e, sub, record)
			}
			if !open && len(at) == 1 && at[0] == "endpoint queue" {
				return fmt.Errorf("delivery %s/%s waits for an attempt: %s", e, sub, record)
			}
		}
		if n, _ := strconv.Atoi(s.pairs("d:" + e)["#"]); n != live {
			return fmt.Errorf("event %s has %d live deliveries and counts %d", e, live, n)
		}
	}
	return nil
}

// checkInFlight compares the notes of deliveries with the in-flight hash of each endpoint
// queue.
func (s state) checkInFlight(places map[string][]string) error {
	noted := 0
	for thing, at := range places {
		parts := strings.Split(thing, "/")
		if len(parts) != 3 || !strings.HasPrefix(at[0], "note of ") {
			continue
		}
		noted++
		replica := strings.TrimPrefix(at[0], "note of ")
		holder := s.pairs("ef:" + parts[0] + "/" + parts[2])[parts[1]]
		holder = holder[:max(0, strings.LastIndex(holder, " "))] // without the version
		if holder != replica {
			return fmt.Errorf("%s is noted by %s and in flight by %q", thing, replica, holder)
		}
	}
	inFlight := 0
	for _, e := range s.under("ef:") {
		inFlight += len(s.pairs("ef:" + e))
	}
	if inFlight != noted {
		return fmt.Errorf("%d deliveries are in flight and %d are noted", inFlight, noted)
	}
	return nil
}

// inOrder is what an ordered delivery's score begins with.
const inOrder = 1e13

// checkEndpoints checks that each endpoint queue with work is due in time.
func (s state) checkEndpoints(map[string][]string) error {
	due := s.scores("due")
	for _, e := range s.under("eq:") {
		company, sub, _ := strings.Cut(e, "/")
		if _, offered := s.scores("dq:" + company)[sub]; offered {
			continue
		}
		about := s.pairs("es:" + e)
		first := -1.0
		for _, at := range s.scores("eq:" + e) {
			if at >= inOrder {
				at = 0
			}
			if first < 0 || at < first {
				first = at
			}
		}
		latest := first
		for _, field := range []string{"until", "held", "tat"} {
			at, _ := strconv.ParseFloat(about[field], 64)
			latest = max(latest, at)
		}
		if len(s["om:"+company]) > 0 { // an ordered one waits for events that are being matched
			latest = max(latest, float64(time.Now().Add(2*time.Second).UnixMilli()))
		}
		at, scheduled := due["e:"+e]
		switch {
		case about["paused"] != "":
			if scheduled {
				return fmt.Errorf("endpoint queue %s is paused and will be served", e)
			}
		case scheduled && at <= latest+1, about["full"] != "" && len(s["ef:"+e]) > 0: // or when a place is free
		case scheduled:
			return fmt.Errorf("endpoint queue %s is due at %v, its first delivery at %v, not before %v: %v", e, at, first, latest, about)
		default:
			return fmt.Errorf("endpoint queue %s will not be served: %v", e, about)
		}
	}
	return nil
}

// checkSchedule checks that all claimable work is scheduled.
func (s state) checkSchedule(map[string][]string) error {
	scheduled := s.scores("sched")
	for _, kind := range []string{"q:", "dq:", "jq:"} {
		for _, company := range s.under(kind) {
			if kind == "jq:" && s.pairs("c:" + company)["job"] != "" {
				continue
			}
			if _, ok := scheduled[company]; !ok {
				return fmt.Errorf("company %s has work in %s and no turn", company, kind)
			}
		}
	}
	_, flag := s.pairs("due")[""]
	_, skipped := s.pairs("due")["~"]
	if len(scheduled) > 0 && !flag && !skipped {
		return fmt.Errorf("%d companies have work and the partition has no wake-up", len(scheduled))
	}
	return nil
}

// checkJobs checks that each company's running job is noted by one replica.
func (s state) checkJobs(places map[string][]string) error {
	for _, company := range s.under("c:") {
		job := s.pairs("c:" + company)["job"]
		if job == "" {
			continue
		}
		at := places["j:"+company+"/"+job]
		if len(at) != 1 || !strings.HasPrefix(at[0], "note of ") {
			return fmt.Errorf("job %s of %s is under way in %v", job, company, at)
		}
	}
	return nil
}
