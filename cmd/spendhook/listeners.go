package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"
)

// How long a whole answer may take: a test delivery of the API takes 20 s, a
// CPU profile of the admin listener as long as it was asked to.
const (
	answerTimeout  = 45 * time.Second
	profileTimeout = 5 * time.Minute
)

// listen serves handler on address until the daemon stops, and returns the
// address it got.
func (d *daemon) listen(ctx context.Context, what, address string, handler http.Handler, timeout time.Duration) (string, error) {
	l, err := bind(ctx, what, address)
	if err != nil {
		return "", err
	}
	d.serve(what, l, handler, timeout)
	return l.Addr().String(), nil
}

func bind(ctx context.Context, what, address string) (net.Listener, error) {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	return l, nil
}

// serve answers on l until the daemon stops.
func (d *daemon) serve(what string, l net.Listener, handler http.Handler, timeout time.Duration) {
	server := &http.Server{
		Handler:           handler,
		ReadHeaderTimeout: 10 * time.Second,
		ReadTimeout:       30 * time.Second,
		WriteTimeout:      timeout,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    32 << 10,
		ErrorLog:          slog.NewLogLogger(d.log.Handler(), slog.LevelDebug),
	}
	go func() {
		if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			d.failed <- fmt.Errorf("%s: %w", what, err)
		}
	}()
	d.stop.add(what, func(ctx context.Context) error { return shutdown(ctx, server) })
}

// shutdown lets running requests finish for half of the time that is left,
// so that a slow client cannot take it from the workers.
func shutdown(ctx context.Context, server *http.Server) error {
	if deadline, ok := ctx.Deadline(); ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Until(deadline)/2)
		defer cancel()
	}
	err := server.Shutdown(ctx)
	if errors.Is(err, context.DeadlineExceeded) {
		return server.Close()
	}
	return err
}
