package rabbitmq

import (
	"encoding/json"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"

	"spendhook/internal/rabbittest"
	"spendhook/relay/mapping"
)

func TestTheHeadersOfARecordAreText(t *testing.T) {
	t.Parallel()
	got := headers(amqp.Table{
		"text": "a", "bytes": []byte("b"), "number": int64(-3), "small": uint8(4), "fraction": 0.5, "yes": true,
		"time": time.Unix(0, 0), "decimal": amqp.Decimal{Scale: 2, Value: 150},
		"x-delivery-count": int64(1), "x-acquired-count": int64(2), // the broker's
		"nothing": nil, "table": amqp.Table{"a": "b"}, "array": []any{"a"},
	})
	want := map[string]string{
		"text": "a", "bytes": "b", "number": "-3", "small": "4", "fraction": "0.5", "yes": "true",
		"time": "1970-01-01T00:00:00Z", "decimal": "150e-2",
	}
	if !maps.Equal(got, want) {
		t.Errorf("headers %v, want %v", got, want)
	}
}

// Else the letter would expire, go to further queues, or be refused.
func TestADeadLetterKeepsItsPropertiesButNoneThatRouteOrDelete(t *testing.T) {
	t.Parallel()
	l := letter{amqp.Delivery{
		Headers: amqp.Table{"kept": int32(1), "CC": []any{"queue"}, "x-delivery-count": int64(1)}, Expiration: "1000", UserId: "other",
		MessageId: "id", Type: "type", ContentType: "application/json", Body: []byte("body"),
	}, strings.Repeat("é", 2*maxReason)}
	p := l.publishing("queue")
	if p.MessageId != "id" || p.Type != "type" || p.ContentType != "application/json" || string(p.Body) != "body" ||
		p.DeliveryMode != amqp.Persistent || p.Headers["kept"] != int32(1) {
		t.Errorf("the letter has lost something: %+v", p)
	}
	if p.Expiration != "" || p.UserId != "" || p.Headers["CC"] != nil || p.Headers["x-delivery-count"] != nil {
		t.Errorf("the letter is routed, deleted or counted: %+v", p)
	}
	if p.Headers["spendhook-expiration"] != "1000" || p.Headers["spendhook-user-id"] != "other" || p.Headers["spendhook-cc"] == nil {
		t.Errorf("headers %v", p.Headers)
	}
	if got := p.Headers["spendhook-dead-reason"]; got != strings.Repeat("é", maxReason/2) {
		t.Errorf("reason of %d bytes", len(got.(string)))
	}
	if l.message.Headers["CC"] == nil {
		t.Error("the message has changed")
	}
	l.message.Headers["large"] = strings.Repeat("x", maxHeaders)
	if p := l.publishing("queue"); p.Headers["large"] != nil || p.Headers["spendhook-left-out"] == nil || p.Headers["spendhook-dead-reason"] == nil {
		t.Errorf("headers %v", p.Headers)
	}
}

// Else an accepted event whose acknowledgement was lost would become a conflict, or a second event.
func TestAMessageThatIsDeliveredAgainMakesTheSameEvent(t *testing.T) {
	t.Parallel()
	eachType(t, "same", func(t *testing.T, s *rabbittest.Server, queue string) {
		t.Helper()
		list := messages(1, 1)
		list[0].Headers["amount"] = int32(5)
		s.Publish(queue, list...)
		m, err := mapping.New(mapping.Options{
			Companies: []uuid.UUID{uuid.New()},
			Fields: mapping.Fields{
				ID: `from.messageId`, Event: `"PAID"`, Timestamp: `time`, Metadata: `{"headers": headers, "from": from}`,
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		deliveries, err := s.Channel().Consume(queue, "", false, false, false, false, nil)
		if err != nil {
			t.Fatal(err)
		}
		var events [2]string
		for again := range events {
			d := <-deliveries
			if d.Redelivered != (again == 1) {
				t.Fatal(d)
			}
			event, _, err := m.Event(t.Context(), record(queue, &d))
			if err != nil {
				t.Fatal(err)
			}
			text, err := json.Marshal(event)
			if err != nil {
				t.Fatal(err)
			}
			events[again] = string(text)
			if err := d.Nack(false, true); err != nil {
				t.Fatal(err)
			}
		}
		if events[0] != events[1] || !strings.Contains(events[0], "amount") {
			t.Errorf("delivered %s, and again %s", events[0], events[1])
		}
	})
}
