package client

//go:generate go tool -modfile=../../tools.mod oapi-codegen -config config.yaml -o client.gen.go ../openapi.yaml
