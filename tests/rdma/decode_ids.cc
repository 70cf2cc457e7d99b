// Lets an S-worker that is up continue the first prompts of an oracle file, all at once, and
// prints the ids, a line a case; exit status 0 if they agree with Hugging Face's.
//
//   decode_ids ADDRESS SECRET_FILE EXPECTED_MANY.JSON CASES MAX_TOKENS
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>

#include "common/api/api_client.h"
#include "common/config/secret.h"
#include "tests/support/hf_oracle.h"

namespace fastdecode {
namespace {

constexpr int kPatienceMs = 120'000;

Result<std::vector<std::vector<int32_t>>> Decode(ApiClient& client, const testing::Oracle& oracle, int max_tokens) {
  for (size_t i = 0; i < oracle.cases.size(); ++i) {
    SubmitMessage submit;
    submit.id = i + 1;
    submit.prompt = oracle.cases[i].prompt_ids;
    submit.max_tokens = max_tokens;
    FD_RETURN_IF_ERROR(client.Submit(submit));
  }
  std::vector<std::vector<int32_t>> ids(oracle.cases.size());
  for (size_t left = ids.size(); left > 0;) {
    FD_ASSIGN_OR_RETURN(const ServerMessage message, client.Receive(kPatienceMs));
    const auto* finished = std::get_if<FinishedMessage>(&message);
    if (finished == nullptr) continue;
    if (finished->finish_reason == "error") return Internal(finished->error_message);
    ids[finished->id - 1] = finished->token_ids;
    --left;
  }
  return ids;
}

Result<bool> Run(char** argv) {
  FD_ASSIGN_OR_RETURN(testing::Oracle oracle, testing::LoadOracle(argv[3]));
  const int max_tokens = std::atoi(argv[5]);
  oracle.cases.resize(std::min(oracle.cases.size(), static_cast<size_t>(std::atoi(argv[4]))));
  for (testing::OracleCase& one : oracle.cases) {
    one.greedy_ids.resize(std::min(one.greedy_ids.size(), static_cast<size_t>(max_tokens)));
  }
  FD_ASSIGN_OR_RETURN(const Secret secret, LoadSecret(argv[2]));
  FD_ASSIGN_OR_RETURN(const std::unique_ptr<ApiClient> client, ApiClient::Connect(argv[1], secret.key, "decode_ids"));
  FD_ASSIGN_OR_RETURN(const auto ids, Decode(*client, oracle, max_tokens));
  for (const std::vector<int32_t>& one : ids) {
    std::printf("ids:");
    for (int32_t id : one) std::printf(" %d", id);
    std::printf("\n");
  }
  const testing::IdsVerdict verdict = testing::CompareIds(oracle, ids, testing::F32Limits(oracle.model));
  for (const std::string& line : verdict.accepted) std::printf("accepted: %s\n", line.c_str());
  for (const std::string& line : verdict.wrong) std::printf("WRONG: %s\n", line.c_str());
  return verdict.wrong.empty();
}

}  // namespace
}  // namespace fastdecode

int main(int argc, char** argv) {
  if (argc != 6) {
    std::fprintf(stderr, "usage: decode_ids ADDRESS SECRET_FILE EXPECTED_MANY.JSON CASES MAX_TOKENS\n");
    return 2;
  }
  const fastdecode::Result<bool> agrees = fastdecode::Run(argv);
  if (!agrees.ok()) std::fprintf(stderr, "decode_ids: %s\n", agrees.status().message().c_str());
  return agrees.ok() && *agrees ? 0 : 1;
}
