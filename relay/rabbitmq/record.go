package rabbitmq

import (
	"fmt"
	"slices"
	"strconv"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"spendhook/relay"
)

// record makes the record of a message, the same one each time that the message is delivered.
func record(queue string, d *amqp.Delivery) *relay.Record {
	return &relay.Record{
		Value:    d.Body,
		Headers:  headers(d.Headers),
		Time:     d.Timestamp,
		Position: int64(d.DeliveryTag), //nolint:gosec // the broker counts deliveries
		From: map[string]any{
			"queue":         queue,
			"exchange":      d.Exchange,
			"routingKey":    d.RoutingKey,
			"messageId":     d.MessageId,
			"correlationId": d.CorrelationId,
			"type":          d.Type,
		},
	}
}

// deliveryCount is how often a message came back to a quorum queue, which counts it in a header.
const deliveryCount = "x-delivery-count"

// counters are the headers that differ when a message is delivered again: an event made of them would be another one.
var counters = []string{deliveryCount, "x-acquired-count"}

// headers returns the values of a table as text, without arrays, nested tables and counters.
func headers(table amqp.Table) map[string]string {
	list := make(map[string]string, len(table))
	for name, value := range table {
		if text, ok := text(value); ok && !slices.Contains(counters, name) {
			list[name] = text
		}
	}
	return list
}

func text(value any) (string, bool) {
	switch v := value.(type) {
	case string:
		return v, true
	case []byte:
		return string(v), true
	case time.Time:
		return v.UTC().Format(time.RFC3339), true
	case amqp.Decimal:
		return strconv.Itoa(int(v.Value)) + "e-" + strconv.Itoa(int(v.Scale)), true
	case nil, amqp.Table, []any:
		return "", false
	}
	return fmt.Sprint(value), true // numbers and booleans
}

// size estimates the bytes that a message takes in memory. It is more than those on the wire.
func size(d *amqp.Delivery) int64 {
	const rest = 512
	return rest + int64(len(d.Body)) + tableSize(d.Headers)
}

func tableSize(table amqp.Table) (size int64) {
	for name, value := range table {
		size += int64(len(name)) + valueSize(value)
	}
	return size
}

func valueSize(value any) (size int64) {
	const fixed = 16
	switch v := value.(type) {
	case string:
		return fixed + int64(len(v))
	case []byte:
		return fixed + int64(len(v))
	case amqp.Table:
		return fixed + tableSize(v)
	case []any:
		for _, item := range v {
			size += valueSize(item)
		}
		return fixed + size
	}
	return fixed
}
