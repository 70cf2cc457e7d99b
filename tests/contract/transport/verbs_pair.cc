// Two endpoints on this host's own RDMA device.
#include "common/base/logging.h"
#include "tests/contract/transport/endpoint_pair.h"
#include "tests/contract/transport/raw_verbs_end.h"
#include "tests/contract/transport/verbs_ends.h"

namespace fastdecode {
namespace {

struct Ends {
  std::unique_ptr<VerbsEndpoint> a, b;
};

Ends ConnectEnds(const EndpointOptions& options, int spin_us) {
  Ends ends{MakeVerbsEnd(options, spin_us), MakeVerbsEnd(options, spin_us)};
  CHECK(ends.a->Connect(ParsedHello(ends.b->hello(), options), 0, 0).ok());
  CHECK(ends.b->Connect(ParsedHello(ends.a->hello(), options), 0, 0).ok());
  return ends;
}

template <int kSpinUs>
std::pair<std::unique_ptr<Endpoint>, std::unique_ptr<Endpoint>> Connect(const EndpointOptions& options) {
  Ends ends = ConnectEnds(options, kSpinUs);
  return {std::move(ends.a), std::move(ends.b)};
}

template <int kSpinUs>
std::pair<std::unique_ptr<Endpoint>, std::unique_ptr<RawEnd>> ConnectRaw(const EndpointOptions& options) {
  std::unique_ptr<VerbsEndpoint> end = MakeVerbsEnd(options, kSpinUs);
  auto raw = std::make_unique<RawVerbsEnd>(end->hello());
  CHECK(end->Connect(raw->hello(), 0, 0).ok());
  return {std::move(end), std::move(raw)};
}

template <int kSpinUs>
CuttablePair ConnectCuttable(const EndpointOptions& options) {
  Ends ends = ConnectEnds(options, kSpinUs);
  auto cut = std::make_shared<VerbsCut>();
  return {MakeCuttable(std::move(ends.a), cut), MakeCuttable(std::move(ends.b), cut), [cut] { cut->Cut(); }};
}

template <int kSpinUs>
TransportFactory Factory(const char* name) {
  return {name, Connect<kSpinUs>, ConnectRaw<kSpinUs>, ConnectCuttable<kSpinUs>};
}

}  // namespace

TransportFactory VerbsFactory() { return Factory<0>("verbs"); }
TransportFactory VerbsSpinningFactory() { return Factory<50>("verbs_spinning"); }

}  // namespace fastdecode
