package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"spendhook/api/client"
	"spendhook/config"
	"spendhook/internal/invalid"
	"spendhook/relay"
	"spendhook/relay/kafka"
	"spendhook/relay/mapping"
	"spendhook/relay/outbox"
	"spendhook/relay/rabbitmq"
)

// relaySource is a source with what sends its records.
type relaySource struct {
	settings config.RelaySource
	source   checkedSource
	sender   *relay.Sender
}

// checkedSource is a source that 'relay doctor' can check.
type checkedSource interface {
	relay.Source
	Check(ctx context.Context) error
}

// openSources makes the sources of the settings. It connects to none. An *invalid.Error has all problems.
func openSources(cfg *config.Relay, log *slog.Logger, metrics *relay.Metrics) (list []relaySource, err error) {
	transport, err := relayTransport(cfg)
	if err != nil {
		return nil, err
	}
	problems := &invalid.Error{}
	for _, of := range cfg.Sources {
		s := relaySource{settings: of}
		if s.source, err = newSource(of, log.With("source", of.Name)); err != nil {
			problems.Add("sources."+of.Name, "INVALID", "%v", err)
		}
		mapped := newMapping(of, problems)
		if len(problems.Fields) > 0 {
			continue
		}
		emitter, err := client.NewEmitter(cfg.URL, client.EmitterOptions{Options: relayClient(of, transport)})
		if err != nil {
			return nil, err
		}
		s.sender = relay.New(relay.Options{Name: of.Name, Emitter: emitter, Mapper: mapped, Log: log, Metrics: metrics})
		list = append(list, s)
	}
	return list, problems.OrNil()
}

// relayClient has the credentials of a source. The relay itself repeats what is refused.
func relayClient(c config.RelaySource, transport http.RoundTripper) client.Options {
	o := client.Options{Transport: transport, Timeout: 15 * time.Second, RetryFor: -1, UserAgent: "spendhook-relay/" + readBuild().Version}
	if c.ClientID != "" {
		o.Credentials = &client.Credentials{ID: c.ClientID, Secret: c.ClientSecret.Reveal()}
	} else {
		o.Token = c.Token.Reveal()
		o.Transport = relay.NewTokenFile(c.TokenFile, c.Token, transport)
	}
	return o
}

func relayTransport(cfg *config.Relay) (*http.Transport, error) {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.TLSClientConfig = &tls.Config{MinVersion: tls.VersionTLS12}
	transport.MaxIdleConnsPerHost = 64
	if err := tlsFiles(cfg.TLSFiles).Apply(transport.TLSClientConfig); err != nil {
		return nil, fmt.Errorf("ca_file, cert_file, key_file: %w", err)
	}
	return transport, nil
}

// newMapping makes the mapping of a source, or adds its problems.
func newMapping(s config.RelaySource, problems *invalid.Error) *mapping.Mapping {
	m, err := mapping.New(mapping.Options{Companies: s.Companies, Fields: mapping.Fields(s.Mapping)})
	if wrong, is := errors.AsType[*invalid.Error](err); is {
		for _, f := range wrong.Fields {
			problems.Add("sources."+s.Name+"."+f.Field, f.Code, "%s", f.Message)
		}
	}
	return m
}

func newSource(s config.RelaySource, log *slog.Logger) (checkedSource, error) {
	switch {
	case s.Kafka != nil:
		return newKafka(s, log)
	case s.RabbitMQ != nil:
		return newRabbitMQ(s, log)
	default:
		return newOutbox(s)
	}
}

func newRabbitMQ(s config.RelaySource, log *slog.Logger) (*rabbitmq.Source, error) {
	q := s.RabbitMQ
	encryption, err := optionalTLS(q.TLSFiles != config.TLSFiles{}, q.TLSFiles)
	if err != nil {
		return nil, err
	}
	return rabbitmq.New(rabbitmq.Options{URL: q.URL, TLS: encryption, Queue: q.Queue, DeadLetterQueue: q.DeadLetterQueue, DeliveryLimit: q.DeliveryLimit, Log: log})
}

func newOutbox(s config.RelaySource) (*outbox.Source, error) {
	return outbox.New(outbox.Options{URL: s.Postgres.URL, Table: s.Postgres.Table})
}

func newKafka(s config.RelaySource, log *slog.Logger) (*kafka.Source, error) {
	k := s.Kafka
	encryption, err := optionalTLS(k.TLS, k.TLSFiles)
	if err != nil {
		return nil, err
	}
	o := kafka.Options{
		Brokers: k.Brokers, Topics: k.Topics, Group: k.Group, DeadLetterTopic: k.DeadLetterTopic, Start: k.Start, TLS: encryption, Log: log,
	}
	if k.SASL != nil {
		o.SASL = &kafka.SASL{Mechanism: k.SASL.Mechanism, User: k.SASL.User, Password: k.SASL.Password}
	}
	return kafka.New(o)
}

// optionalTLS returns nil when TLS is off.
func optionalTLS(on bool, files config.TLSFiles) (*tls.Config, error) {
	if !on {
		return nil, nil //nolint:nilnil // TLS is off
	}
	c := &tls.Config{MinVersion: tls.VersionTLS12}
	return c, tlsFiles(files).Apply(c)
}
