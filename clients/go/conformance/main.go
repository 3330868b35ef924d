// Command conformance is a receiver and an emitter for the suite of clients/conformance, which tests the
// libraries of all languages. Its settings are environment variables.
package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	_ "modernc.org/sqlite" // the driver "sqlite"

	"spendhook/api/client"
	"spendhook/clients/go/inbox"
)

func main() {
	if err := run(context.Background(), os.Getenv, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "conformance:", err)
		os.Exit(1)
	}
}

// program is one inbox and one emitter.
type program struct {
	db      *sql.DB
	box     *inbox.Inbox[*sql.Tx]
	emitter *client.Emitter

	mu     sync.Mutex
	failed map[string]int // how often the work failed on purpose, by event
}

func run(ctx context.Context, env func(string) string, out io.Writer) error {
	db, err := sql.Open("sqlite", "file:"+env("DATABASE")+"?_pragma=busy_timeout(10000)&_pragma=journal_mode(WAL)&_txlock=immediate")
	if err != nil {
		return err
	}
	defer func() { _ = db.Close() }()
	p := &program{db: db, failed: map[string]int{}}
	if err := p.open(ctx, env); err != nil {
		return err
	}
	port := env("PORT")
	if port == "" {
		port = "0"
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:"+port)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "listening on http://%s\n", listener.Addr())
	mux := http.NewServeMux()
	mux.Handle("/hooks", p.box)
	mux.Handle("/hooks/", p.box)
	mux.HandleFunc("GET /inbox", p.list)
	mux.HandleFunc("POST /catchup", p.catchUp)
	mux.HandleFunc("POST /emit", p.emit)
	if env("FILL_GAPS") == "1" {
		go p.box.FillGaps(ctx)
	}
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	return server.Serve(listener)
}

// open makes the inbox, its tables and the emitter.
func (p *program) open(ctx context.Context, env func(string) string) error {
	store := &inbox.SQLStore{DB: p.db}
	if err := store.Migrate(ctx); err != nil {
		return err
	}
	if _, err := p.db.ExecContext(ctx, "CREATE TABLE IF NOT EXISTS worked (id TEXT NOT NULL, sequence BIGINT)"); err != nil {
		return err
	}
	verifier, err := inbox.NewVerifier(inbox.VerifierOptions{
		Secrets: strings.Fields(env("SPENDHOOK_SECRET")), KeysURL: env("SPENDHOOK_JWKS"), Origin: env("ORIGIN"),
	})
	if err != nil {
		return err
	}
	options := client.Options{Token: env("SPENDHOOK_TOKEN")}
	if id := env("SPENDHOOK_CLIENT_ID"); id != "" {
		options.Credentials = &client.Credentials{ID: id, Secret: env("SPENDHOOK_CLIENT_SECRET")}
	}
	o := inbox.Options[*sql.Tx]{
		Verifier: verifier, Store: store, Work: p.work, Failed: func(err error) { fmt.Fprintln(os.Stderr, err) },
		Origin: env("SPENDHOOK_ORIGIN"),
	}
	if url := env("SPENDHOOK_URL"); url != "" {
		if o.Feed, err = feed(url, env("SPENDHOOK_SUBSCRIBER"), options); err != nil {
			return err
		}
		if p.emitter, err = client.NewEmitter(url, client.EmitterOptions{Options: options}); err != nil {
			return err
		}
	}
	p.box, err = inbox.New(o)
	return err
}

func feed(url, subscriber string, o client.Options) (*inbox.Feed, error) {
	api, err := client.New(url, o)
	if err != nil {
		return nil, err
	}
	id, err := uuid.Parse(subscriber)
	return &inbox.Feed{API: api, Subscriber: id}, err
}

// work notes the event. It fails twice if the metadata of the event say so.
func (p *program) work(ctx context.Context, e *inbox.Event, tx *sql.Tx) error {
	var metadata struct {
		Fail bool `json:"fail"`
	}
	if err := json.Unmarshal(e.Metadata, &metadata); err == nil && metadata.Fail && p.fails(e.ID) {
		return errors.New("it fails as it was told to")
	}
	_, err := tx.ExecContext(ctx, "INSERT INTO worked (id, sequence) VALUES ($1, $2)", e.ID, e.Sequence)
	return err
}

func (p *program) fails(id string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.failed[id]++
	return p.failed[id] <= 2
}

// list answers with the ids of the events that were worked on, in that order.
func (p *program) list(w http.ResponseWriter, r *http.Request) {
	rows, err := p.db.QueryContext(r.Context(), "SELECT id FROM worked ORDER BY rowid")
	if err != nil {
		answer(w, http.StatusInternalServerError, map[string]any{"error": err.Error()})
		return
	}
	defer func() { _ = rows.Close() }()
	ids := []string{}
	for rows.Next() {
		var id string
		if err = rows.Scan(&id); err != nil {
			break
		}
		ids = append(ids, id)
	}
	if err := errors.Join(err, rows.Err()); err != nil {
		answer(w, http.StatusInternalServerError, map[string]any{"error": err.Error()})
		return
	}
	answer(w, http.StatusOK, ids)
}

func (p *program) catchUp(w http.ResponseWriter, r *http.Request) {
	progress, err := p.box.CatchUp(r.Context())
	if err != nil {
		answer(w, http.StatusInternalServerError, map[string]any{"error": err.Error(), "missing": progress.Missing})
		return
	}
	answer(w, http.StatusOK, map[string]any{"missing": progress.Missing})
}

func (p *program) emit(w http.ResponseWriter, r *http.Request) {
	var events []client.EventInput
	if err := json.NewDecoder(r.Body).Decode(&events); err != nil {
		answer(w, http.StatusBadRequest, map[string]any{"error": err.Error()})
		return
	}
	results, err := p.emitter.SendAll(r.Context(), events)
	if err != nil {
		answer(w, http.StatusInternalServerError, map[string]any{"error": err.Error(), "results": results})
		return
	}
	answer(w, http.StatusOK, results)
}

func answer(w http.ResponseWriter, status int, value any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(value)
}
