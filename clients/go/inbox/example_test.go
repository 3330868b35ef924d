package inbox_test

import (
	"context"
	"database/sql"
	"log"
	"net/http"
	"os"
	"strings"

	"spendhook/clients/go/inbox"
)

// Marks payments as paid, each once. Other events, such as SUBSCRIBER_TEST, change nothing.
func Example() {
	ctx := context.Background()
	db, err := sql.Open("pgx", os.Getenv("DATABASE_URL"))
	if err != nil {
		log.Fatal(err)
	}
	store := &inbox.SQLStore{DB: db}
	if err := store.Migrate(ctx); err != nil {
		log.Fatal(err)
	}
	verifier, err := inbox.NewVerifier(inbox.VerifierOptions{Secrets: strings.Fields(os.Getenv("SPENDHOOK_SECRET"))})
	if err != nil {
		log.Fatal(err)
	}
	box, err := inbox.New(inbox.Options[*sql.Tx]{
		Verifier: verifier,
		Store:    store,
		Work: func(ctx context.Context, e *inbox.Event, tx *sql.Tx) error {
			if e.Type != "PAYMENT_PAID" {
				return nil
			}
			_, err := tx.ExecContext(ctx, "UPDATE payments SET paid = TRUE WHERE event = $1", e.ID)
			return err
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	http.Handle("/hooks", box)
}
