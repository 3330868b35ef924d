package inspect

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"spendhook/dispatcher/delivery"
	"spendhook/dispatcher/delivery/attempt"
	"spendhook/internal/terminal"
)

var reasons = map[string]string{
	delivery.ReasonExhausted:          "every attempt of the schedule failed",
	delivery.ReasonGone:               "the endpoint answered 410 Gone",
	delivery.ReasonStopped:            "the receiver asked for no more attempts of this delivery",
	delivery.ReasonTransform:          "the transform of the subscriber failed on the event",
	delivery.ReasonSubscriberDeleted:  "the subscriber was deleted",
	delivery.ReasonSubscriberDisabled: "the subscriber is disabled",
	delivery.ReasonBusy:               "the endpoint is at its limit of concurrent attempts, which is low after an outage or a 429, and grows with each answer",
	delivery.ReasonHostBusy:           "the host, which several subscribers share, is at its limit of concurrent attempts",
	delivery.ReasonUnreachable:        "the circuit breaker of the endpoint is open",
	delivery.ReasonRetryAfter:         "the endpoint sent Retry-After",
	delivery.ReasonRateLimit:          "the rate limit of the subscriber",
	delivery.ReasonOrder:              "an earlier event is delivered first",
	delivery.ReasonPaused:             "the subscriber is paused or not verified",
	delivery.ReasonInterrupted:        "the attempt was interrupted and is repeated",
	delivery.ReasonLocked:             "a secret of the subscriber cannot be decrypted",
	delivery.ReasonExpired:            "the retention of the event has ended",
	delivery.ReasonDropped:            "it was dropped on request",
	delivery.ReasonReplay:             "it was replayed",
	delivery.ReasonRecover:            "it was recovered",
	"MANUAL":                          "it was disabled on request",
	"GONE":                            "its endpoint answered 410 Gone",
	"FAILING":                         "it failed for too long without a success",
}

// ReasonText describes the reason of a delivery's status, or of a disabled subscriber, in words.
func ReasonText(reason string) string {
	if text, ok := reasons[reason]; ok {
		return text
	}
	return strings.ToLower(strings.ReplaceAll(reason, "_", " "))
}

var classes = map[string]string{
	"oversized_response": "delivered; only the first 16 KiB of the answer were read", "http_3xx": "the endpoint redirects; redirects are not followed",
	"http_4xx": "the receiver refused the request", "http_410": "gone: the receiver accepts no more deliveries", "http_429": "the receiver limits the rate of requests",
	"stopped": "the receiver refused the event for good", "http_5xx": "the receiver failed", "protocol": "the answer is not valid HTTP", "timeout": "no answer within the time-out",
	"connect_timeout": "no connection within the time-out", "connect": "connection refused, or no route", "dns": "the name does not resolve",
	"tls": "TLS failed", "reset": "the connection ended before the answer", "refused_address": "the address is not allowed",
	"proxy": "the egress proxy cannot be reached", "proxy_refused": "the egress proxy did not connect to the endpoint",
	"token": "no access token: its endpoint cannot be reached or gave no valid answer", "token_refused": "no access token: its endpoint refused the credentials",
	"aborted": "interrupted by the daemon", "locked": "a secret of the subscriber cannot be decrypted", "transform": "the transform failed on the event", "panic": "an internal error of the daemon",
}

// ErrorText describes the class of a failed attempt in words.
func ErrorText(class string) string {
	if text, ok := classes[class]; ok {
		return text
	}
	return strings.ReplaceAll(class, "_", " ")
}

var details = map[Verdict]string{
	VerdictPending:       "The event is on its way.",
	VerdictNotSubscribed: "The subscriber's events do not include this type.",
	VerdictFiltered:      "The filter of the subscriber does not match the event.",
	VerdictDisabled:      "The subscriber is disabled; enable it and recover what it missed.",
	VerdictCreatedLater:  "The subscriber was created after the event was accepted; replay sends it.",
	VerdictNotMatched:    "The subscriber did not want this type when the event was dispatched; replay sends it.",
}

// Why says what became of the event, or what its delivery waits for.
func (e *Explanation) Why() string {
	d := e.Delivery
	if d == nil {
		return details[e.Verdict]
	}
	last, why := d.LastAttempt(), ""
	if d.Reason != "" {
		why = ": " + ReasonText(d.Reason)
	}
	switch {
	case e.Ahead != "":
		return "The delivery of event " + e.Ahead + ", which has the same value of orderedBy, must end first."
	case e.Verdict == VerdictDelivered:
		return fmt.Sprintf("Delivered: attempt %d was answered %d at %s.", last.Number, last.StatusCode, time.UnixMilli(last.StartedAt).UTC().Format(time.RFC3339))
	case e.Verdict == VerdictDead:
		advice := " Retry it, or recover the subscriber."
		if d.Reason == delivery.ReasonTransform {
			advice = " Mend the transform, then retry it."
		}
		return "Given up" + why + "." + failure(last) + advice
	case e.Verdict == VerdictCancelled:
		return "Cancelled" + why + "."
	case d.Status == delivery.StatusDelivering:
		return fmt.Sprintf("Attempt %d is under way.", d.Count+1)
	case d.Count == 0:
		return "Not attempted yet" + why + "."
	default:
		return "It waits" + why + "." + failure(last)
	}
}

// shownOfAnswer is how many characters of an answer are quoted.
const shownOfAnswer = 200

// failure says how the last attempt has failed; "" if it did not, or there was none.
func failure(last attempt.Attempt) string {
	if last.Error == "" {
		return ""
	}
	text := fmt.Sprintf(" Attempt %d", last.Number)
	switch {
	case last.StatusCode > 0:
		text += fmt.Sprintf(" was answered %d", last.StatusCode)
	case last.Transform != "":
		text += " sent nothing"
	default:
		text += " had no answer"
	}
	text += ": " + ErrorText(last.Error)
	if answer := quoted(cmp.Or(last.Transform, string(last.ResponseBody))); answer != "" {
		text += " (" + answer + ")"
	}
	return text + "."
}

// quoted returns the beginning of an answer or error as one line.
func quoted(text string) string {
	text = terminal.Escape(strings.Join(strings.Fields(strings.ToValidUTF8(text, "?")), " "), "")
	if runes := []rune(text); len(runes) > shownOfAnswer {
		text = string(runes[:shownOfAnswer]) + "…"
	}
	return text
}

// Detail is Why with the time of the next attempt.
func (e *Explanation) Detail() string {
	if e.Delivery != nil {
		if next := e.Delivery.NextAttemptAt(); next != nil && e.Ahead == "" {
			return e.Why() + " The next attempt is at " + next.Format(time.RFC3339) + "."
		}
	}
	return e.Why()
}
