package main

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"path/filepath"

	"spendhook/config"
	"spendhook/internal/redisx"
	"spendhook/internal/seal"
)

// encryptionKeyFile is the file in the data directory with the key that the daemon creates
// when none is configured.
const encryptionKeyFile = "encryption.key"

// openKeyring reads the encryption keys. Without a key in the settings, it calls local for the
// key of the data directory.
func openKeyring(cfg *config.Config, local func(path string) (seal.Key, error)) (*seal.Keyring, error) {
	var current seal.Key
	var err error
	switch {
	case cfg.Encryption.Key != "":
		current, err = seal.ParseKey(cfg.Encryption.Key.Reveal())
	case cfg.Encryption.KeyFile != "":
		current, err = seal.ReadFile(cfg.Encryption.KeyFile)
	default:
		current, err = local(filepath.Join(cfg.DataDir, encryptionKeyFile))
		if errors.Is(err, fs.ErrNotExist) {
			err = fmt.Errorf("data directory %s has no %s; 'spendhook serve' creates it", cfg.DataDir, encryptionKeyFile)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("encryption key: %w", err)
	}
	var older []seal.Key
	add := func(key seal.Key, failure error) {
		older, err = append(older, key), errors.Join(err, failure)
	}
	for _, text := range cfg.Encryption.OldKeys {
		add(seal.ParseKey(text.Reveal()))
	}
	for _, path := range cfg.Encryption.OldKeyFiles {
		add(seal.ReadFile(path))
	}
	if err != nil {
		return nil, fmt.Errorf("old encryption key: %w", err)
	}
	return seal.New(current, older...)
}

// warnOfLocalKey logs a warning when the key is in the data directory but Redis or the database
// is not.
func warnOfLocalKey(cfg *config.Config, log *slog.Logger) {
	if cfg.Encryption.Key == "" && cfg.Encryption.KeyFile == "" && (cfg.Redis.URL != redisx.Embedded || cfg.Storage.URL != "") {
		log.Warn("the encryption key is kept in data_dir, but Redis or the database is elsewhere: secrets there are lost with this directory, and other replicas cannot decrypt them; set encryption.key or encryption.key_file",
			"file.path", filepath.Join(cfg.DataDir, encryptionKeyFile))
	}
}
