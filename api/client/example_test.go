package client_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"os"
	"time"

	"spendhook/api/client"
)

// Sends an event and reads it again.
func Example() {
	api, err := client.New(os.Getenv("SPENDHOOK_URL"), client.Options{
		Credentials: &client.Credentials{ID: os.Getenv("SPENDHOOK_CLIENT_ID"), Secret: os.Getenv("SPENDHOOK_CLIENT_SECRET")},
	})
	if err != nil {
		log.Fatal(err)
	}
	ctx := context.Background()
	sent, err := api.IngestEventsWithResponse(ctx, &client.IngestEventsParams{}, []client.EventInput{{
		ID: "evt_1", Event: "PAYMENT_PAID", Timestamp: time.Now(), Metadata: json.RawMessage(`{"amount":"12.50"}`),
	}})
	if refusal, ok := errors.AsType[*client.Error](err); ok {
		log.Fatalf("refused, see %s: %s", refusal.Type, refusal.Detail)
	}
	if err != nil {
		log.Fatal(err) // the daemon was not reached
	}
	for _, result := range sent.JSON2XX.Results {
		if result.Error != nil {
			log.Fatalf("refused: %s: %s", result.Error.Code, result.Error.Message)
		}
		fmt.Println(*result.ID, result.Status)
	}
	event, err := api.GetEventWithResponse(ctx, "evt_1", &client.GetEventParams{})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(event.JSON200.Event, string(event.JSON200.Metadata))
}

// Emits an event. If the process ends before Send returns, the same call is made again later: the daemon knows the event
// by its id.
func ExampleEmitter() {
	emitter, err := client.NewEmitter(os.Getenv("SPENDHOOK_URL"), client.EmitterOptions{Options: client.Options{
		Credentials: &client.Credentials{ID: os.Getenv("SPENDHOOK_CLIENT_ID"), Secret: os.Getenv("SPENDHOOK_CLIENT_SECRET")},
	}})
	if err != nil {
		log.Fatal(err)
	}
	paidAt := time.Now() // as it was stored with the payment
	err = emitter.Send(context.Background(), client.EventInput{
		ID: "pay-4711", Event: "PAYMENT_PAID", Timestamp: paidAt, Metadata: json.RawMessage(`{"amount":"12.50"}`),
	})
	if refusal, ok := errors.AsType[*client.Error](err); ok {
		log.Fatalf("refused: %s", refusal.Detail)
	}
	if err != nil {
		log.Fatal(err) // it is not known whether it was accepted
	}
}
