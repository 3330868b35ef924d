package console

import (
	"fmt"
	"html/template"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"spendhook/dispatcher/delivery"
	"spendhook/dispatcher/delivery/store"
	"spendhook/dispatcher/inspect"
	"spendhook/dispatcher/redelivery"
	"spendhook/subscribers"
)

func (s *server) funcs() template.FuncMap {
	return template.FuncMap{
		"asset":       func(name string) string { return s.assets.paths[name] },
		"num":         number[int64],
		"numi":        number[int],
		"bytes":       byteCount,
		"short":       shortDuration,
		"ms":          wholeMillis,
		"mstime":      func(ms int64) time.Time { return time.UnixMilli(ms).UTC() },
		"time":        timeTag,
		"timep":       func(t *time.Time) template.HTML { return timeTag(*t) },
		"status":      statusOf,
		"reason":      inspect.ReasonText,
		"why":         func(e inspect.Explanation) string { return e.Why() },
		"verdict":     func(v inspect.Verdict) label { return verdicts[v] },
		"class":       inspect.ErrorText,
		"jobTitle":    jobTitle,
		"jobKind":     jobKindTitle,
		"spark":       sparkline,
		"resultsText": resultsText,
		"statesText":  statesText,
		"safetext":    func(b []byte) string { return strings.ToValidUTF8(string(b), "\uFFFD") },
		"uuid8":       func(id uuid.UUID) string { return id.String()[:8] },
		"list":        func(items ...string) []string { return items },
		"items":       func(items ...any) []any { return items },
		"periods":     func() []period { return periods },
		"join":        strings.Join,
	}
}

// number formats a number with commas between the thousands.
func number[N int | int64](n N) string {
	text := strconv.FormatInt(int64(n), 10)
	for i := len(text) - 3; i > 0 && text[i-1] != '-'; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}

func byteCount(n int64) string {
	switch {
	case n < 1<<10:
		return number(n) + " B"
	case n < 1<<20:
		return fmt.Sprintf("%.1f KiB", float64(n)/(1<<10))
	case n < 1<<30:
		return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
	}
	return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30))
}

// wholeMillis formats a duration in whole milliseconds.
func wholeMillis(n int64) string {
	if n == 0 {
		return "< 1 ms"
	}
	if n < 10 {
		return strconv.FormatInt(n, 10) + " ms"
	}
	return shortDuration(time.Duration(n) * time.Millisecond)
}

// shortDuration formats a duration in at most two units.
func shortDuration(d time.Duration) string {
	switch {
	case d < 0:
		return "0 s"
	case d > 0 && d < 10*time.Millisecond:
		return strconv.FormatFloat(float64(d.Microseconds())/1000, 'f', 1, 64) + " ms"
	case d < time.Second:
		return strconv.FormatInt(d.Milliseconds(), 10) + " ms"
	case d < 10*time.Second:
		return strconv.FormatFloat(d.Seconds(), 'f', 1, 64) + " s"
	case d < time.Minute:
		return strconv.Itoa(int(d.Seconds())) + " s"
	case d < time.Hour:
		return units(d, time.Minute, "min", time.Second, "s")
	case d < 24*time.Hour:
		return units(d, time.Hour, "h", time.Minute, "min")
	}
	return units(d, 24*time.Hour, "d", time.Hour, "h")
}

func units(d, large time.Duration, name string, small time.Duration, rest string) string {
	text := fmt.Sprintf("%d %s", d/large, name)
	if n := d % large / small; n > 0 {
		text += fmt.Sprintf(" %d %s", n, rest)
	}
	return text
}

// timeTag returns a time in UTC. A script of the page shows it in the viewer's time zone.
func timeTag(t time.Time) template.HTML {
	t = t.UTC()
	stamp, text := t.Format("2006-01-02T15:04:05.000Z"), t.Format("2006-01-02 15:04:05")
	return template.HTML(`<time datetime="` + stamp + `" title="` + text + t.Format(".000") + ` UTC">` + text + ` UTC</time>`) //nolint:gosec // digits alone
}

// label is a word with a tone. A page shows the tone as a colour of the word.
type label struct{ Text, Tone string }

// The tones: success, waiting, an error that is retried, failure, and ended or disabled.
const (
	good  = "good"
	busy  = "busy"
	warn  = "warn"
	bad   = "bad"
	quiet = "quiet"
)

var statusLabels = map[string]label{
	string(delivery.StatusPending):    {"Pending", busy},
	string(delivery.StatusDelivering): {"Delivering", busy},
	string(delivery.StatusRetrying):   {"Retrying", warn},
	string(delivery.StatusDelivered):  {"Delivered", good},
	string(delivery.StatusDead):       {"Dead", bad},
	string(delivery.StatusCancelled):  {"Cancelled", quiet},
	string(store.EventHeld):           {"Held", warn},
	string(store.EventNoSubscriber):   {"No subscriber", quiet},
	string(subscribers.KeyNext):       {"Next", quiet},
	string(subscribers.KeySigning):    {"Signing", good},
	string(subscribers.KeyRetired):    {"Retired", quiet},
	"healthy":                         {"Healthy", good},
	"failing":                         {"Failing", bad},
	"disabled":                        {"Disabled", quiet},
	"paused":                          {"Paused", warn},
	"unverified":                      {"Not verified", warn},
	"unconfirmed":                     {"Not confirmed", warn},
	"confirmed":                       {"Confirmed", good},
	"unsubscribed":                    {"Unsubscribed", quiet},
	"resumed":                         {"Resumed", good},
	"enabled":                         {"Enabled", good},
	"recovered":                       {"Recovered", good},
	string(redelivery.JobQueued):      {"Queued", busy},
	string(redelivery.JobRunning):     {"Running", busy},
	string(redelivery.JobCompleted):   {"Completed", good},
}

func statusOf(status any) label {
	text := fmt.Sprint(status)
	if l, ok := statusLabels[text]; ok {
		return l
	}
	return label{text, quiet}
}

var verdicts = map[inspect.Verdict]label{
	inspect.VerdictDelivered:     {"Delivered", good},
	inspect.VerdictPending:       {"Pending", busy},
	inspect.VerdictDead:          {"Dead", bad},
	inspect.VerdictCancelled:     {"Cancelled", quiet},
	inspect.VerdictNotSubscribed: {"Not subscribed", quiet},
	inspect.VerdictFiltered:      {"Filtered", quiet},
	inspect.VerdictDisabled:      {"Disabled", warn},
	inspect.VerdictCreatedLater:  {"Created later", quiet},
	inspect.VerdictNotMatched:    {"Not matched", quiet},
}

// trimFloat formats a number without trailing zeros.
func trimFloat(f float64) string { return strconv.FormatFloat(f, 'f', -1, 64) }
