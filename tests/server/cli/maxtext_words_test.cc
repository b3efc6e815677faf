#include "server/cli/maxtext_words.h"

#include <gtest/gtest.h>

#include <vector>

#include "engine/base/error.h"

namespace tandem::server {
namespace {

std::string Fault(const std::vector<std::string>& words) {
  convert::ConvertSpec spec;
  try {
    ReadMaxTextWords(words, &spec);
  } catch (const Error& error) {
    return error.what();
  }
  return "accepted";
}

TEST(MaxTextWords, ACommandOfToMaxTextIsAConversion) {
  const std::vector<std::string> words = {"base.yml",
                                          "model_name=gemma2-2b",
                                          "hf_access_token=hf_secret",
                                          "--hf_model_path=/models/gemma-2-2b",
                                          "base_output_directory=/out/x",
                                          "scan_layers=True",
                                          "weight_dtype=bfloat16",
                                          "checkpoint_storage_use_zarr3=false",
                                          "skip_jax_distributed_system=True"};
  ASSERT_TRUE(HasMaxTextWords(words));
  convert::ConvertSpec spec;
  const std::string note = ReadMaxTextWords(words, &spec);
  EXPECT_EQ(spec.source, "/models/gemma-2-2b");
  EXPECT_EQ(spec.target, "/out/x");
  EXPECT_EQ(spec.format, "maxtext");
  EXPECT_EQ(spec.layout, "scanned");
  EXPECT_EQ(spec.dtype, "bf16");
  EXPECT_EQ(spec.maxtext.zarr, 2);
  EXPECT_EQ(note, "model_name, hf_access_token, skip_jax_distributed_system have no effect here");
  EXPECT_EQ(note.find("secret"), std::string::npos);
}

TEST(MaxTextWords, FaultsNameTheKeyAndWhatItAllows) {
  EXPECT_NE(Fault({"scan_layer=true"}).find("scan_layer: unknown key; did you mean scan_layers?"),
            std::string::npos);
  EXPECT_NE(Fault({"scan_layers=maybe"}).find("scan_layers: must be true or false"),
            std::string::npos);
  EXPECT_NE(Fault({"weight_dtype=int8"}).find("must be bfloat16 or float32"), std::string::npos);
  EXPECT_NE(Fault({"base.yml", "model_name=gemma2-2b"}).find("hf_model_path: must name"),
            std::string::npos);
  EXPECT_NE(Fault({"hf_model_path=m"}).find("base_output_directory: must be given"),
            std::string::npos);
  EXPECT_NE(Fault({"scan_layers=true", "other"}).find("must be key=value"), std::string::npos);
}

TEST(MaxTextWords, OrdinaryPathsAreNoWords) {
  const std::vector<std::string> words = {"model", "target"};
  EXPECT_FALSE(HasMaxTextWords(words));
}

}  // namespace
}  // namespace tandem::server
