// Tests that run for every pair of formats of keys and values.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "attention_case.h"

namespace fastdecode::kernels {

using FormatPair = std::pair<KvFormat, KvFormat>;

inline std::vector<FormatPair> AllPairs() {
  std::vector<FormatPair> pairs;
  for (int keys = 0; keys < kKvFormats; ++keys) {
    for (int values = 0; values < kKvFormats; ++values) {
      pairs.emplace_back(static_cast<KvFormat>(keys), static_cast<KvFormat>(values));
    }
  }
  return pairs;
}

inline std::string PairName(const testing::TestParamInfo<FormatPair>& info) {
  return std::string(KvFormatName(info.param.first)) + "_" + std::string(KvFormatName(info.param.second));
}

class PairTest : public testing::TestWithParam<FormatPair> {
 protected:
  CaseSpec Of(CaseSpec spec) const {
    spec.keys = GetParam().first;
    spec.values = GetParam().second;
    return spec;
  }
};

}  // namespace fastdecode::kernels
