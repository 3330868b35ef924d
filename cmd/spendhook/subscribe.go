package main

import (
	"context"
	"net/http"

	"github.com/google/uuid"

	"spendhook/api/gen"
)

// subscribe registers a receiver and returns the path of the new subscriber
// and its signing secret.
func subscribe(ctx context.Context, api *client, company *uuid.UUID, callback string, events []string) (path, secret string, err error) {
	request := gen.SubscriberCreate{
		Name: "spendhook listen", CallbackURL: callback, Events: events, CompanyUUID: company,
	}
	var created gen.SubscriberWithSecret
	if err := api.call(ctx, http.MethodPost, "/api/v1/subscribers", request, &created); err != nil {
		return "", "", err
	}
	path = withCompany("/api/v1/subscribers/"+created.UUID.String(), company)
	return path, created.Secret, nil
}
