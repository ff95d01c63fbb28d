package main

import (
	"bytes"
	"context"
	"fmt"

	"github.com/containerd/nri/pkg/adaptation"
	"github.com/containerd/ttrpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
)

const namespace = "nri.pkg.api.v1alpha1."

// watched looks at every message of a plugin: at the bytes of its answers, and at the fields of its calls.
func watched(d *driver) adaptation.Option {
	answers := func(ctx context.Context, request *ttrpc.Request, response *ttrpc.Response,
		_ *ttrpc.UnaryClientInfo, invoke ttrpc.Invoker) error {
		err := invoke(ctx, request, response)
		if err == nil && (response.Status == nil || response.Status.Code == 0) {
			d.write(line{Seen: request.Method, Error: sameBytes(request.Method, response.Payload)})
		}
		return err
	}
	calls := func(ctx context.Context, read ttrpc.Unmarshaler, info *ttrpc.UnaryServerInfo,
		method ttrpc.Method) (interface{}, error) {
		return method(ctx, func(into interface{}) error {
			err := read(into)
			if message, ok := into.(proto.Message); ok && err == nil {
				d.write(line{Seen: info.FullMethod, Error: unknown(message.ProtoReflect())})
			}
			return err
		})
	}
	return adaptation.WithTTRPCOptions(
		[]ttrpc.ClientOpts{ttrpc.WithUnaryClientInterceptor(answers)},
		[]ttrpc.ServerOpt{ttrpc.WithUnaryServerInterceptor(calls)},
	)
}

// sameBytes says how an answer differs from what the library would write of it; empty where it does not.
func sameBytes(method string, got []byte) string {
	name := protoreflect.FullName(namespace + method + "Response")
	if method == "StateChange" || method == "Shutdown" {
		name = namespace + "Empty"
	}
	kind, err := protoregistry.GlobalTypes.FindMessageByName(name)
	if err != nil {
		return err.Error()
	}
	message := kind.New().Interface()
	if err := proto.Unmarshal(got, message); err != nil {
		return err.Error()
	}
	if extra := unknown(message.ProtoReflect()); extra != "" {
		return extra
	}
	want, err := proto.MarshalOptions{Deterministic: true}.Marshal(message)
	if err != nil {
		return err.Error()
	}
	if !bytes.Equal(got, want) {
		return fmt.Sprintf("%x, not %x", got, want)
	}
	return ""
}

// unknown names the first message that holds a field which the library does not know.
func unknown(message protoreflect.Message) string {
	if extra := message.GetUnknown(); len(extra) > 0 {
		return fmt.Sprintf("%s has unknown fields: %x", message.Descriptor().FullName(), []byte(extra))
	}
	found := ""
	message.Range(func(field protoreflect.FieldDescriptor, value protoreflect.Value) bool {
		switch {
		case field.IsMap():
			if field.MapValue().Message() != nil {
				value.Map().Range(func(_ protoreflect.MapKey, entry protoreflect.Value) bool {
					found = unknown(entry.Message())
					return found == ""
				})
			}
		case field.IsList() && field.Message() != nil:
			for i := 0; i < value.List().Len() && found == ""; i++ {
				found = unknown(value.List().Get(i).Message())
			}
		case field.Message() != nil:
			found = unknown(value.Message())
		}
		return found == ""
	})
	return found
}
