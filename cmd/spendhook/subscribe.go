package main

import (
	"context"

	"github.com/google/uuid"

	"spendhook/api/client"
)

// subscribe registers a receiver and returns the new subscriber and its signing secret.
func subscribe(ctx context.Context, api *client.ClientWithResponses, company *uuid.UUID, callback string, events []string) (id uuid.UUID, secret string, err error) {
	created, err := api.CreateSubscriberWithResponse(ctx, &client.CreateSubscriberParams{CompanyUUID: company}, client.SubscriberCreate{
		Name: "spendhook listen", CallbackURL: callback, Events: events,
	})
	if err != nil {
		return uuid.Nil, "", err
	}
	return created.JSON201.UUID, created.JSON201.Secret, nil
}
