#include "offload/trace/generator.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <numeric>
#include <random>
#include <utility>

namespace stoker::offload {
namespace {

constexpr size_t kHistory = 8;

// std::uniform_* and std::shuffle differ between libraries; these do not.
class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}
  double Unit() { return static_cast<double>(engine_() >> 11) * 0x1p-53; }
  int Below(int limit) { return static_cast<int>(Unit() * limit); }

 private:
  std::mt19937_64 engine_;
};

class LayerRouter {
 public:
  LayerRouter(const GeneratorOptions& options, double exponent, Random* random)
      : options_(options), random_(random), order_(options.experts) {
    double sum = 0;
    const int active = std::clamp(static_cast<int>(options.active_share * options.experts),
                                  options.top_k, options.experts);
    for (int rank = 0; rank < active; ++rank) {
      sum += std::pow(rank + 1.0, -exponent);
      cumulative_.push_back(sum);
    }
    std::iota(order_.begin(), order_.end(), 0);
    NewTopic();
  }

  void NewTopic() {
    for (int i = options_.experts - 1; i > 0; --i) {
      std::swap(order_[i], order_[random_->Below(i + 1)]);
    }
  }

  std::vector<int> NextToken() {
    std::vector<int> chosen;
    while (static_cast<int>(chosen.size()) < options_.top_k) {
      const int expert = Draw();
      if (std::find(chosen.begin(), chosen.end(), expert) == chosen.end()) chosen.push_back(expert);
    }
    history_.push_front(chosen);
    if (history_.size() > kHistory) history_.pop_back();
    return chosen;
  }

 private:
  int Draw() {
    const double kind = random_->Unit();
    size_t age = history_.size();
    if (kind < options_.copy_previous) {
      age = 0;
    } else if (kind < options_.copy_previous + options_.copy_recent) {
      age = 1 + random_->Below(kHistory - 1);
    }
    if (age < history_.size()) return history_[age][random_->Below(options_.top_k)];
    const double at = random_->Unit() * cumulative_.back();
    const auto rank = std::upper_bound(cumulative_.begin(), cumulative_.end(), at);
    return order_[std::min<size_t>(rank - cumulative_.begin(), cumulative_.size() - 1)];
  }

  const GeneratorOptions& options_;
  Random* const random_;
  std::vector<double> cumulative_;
  std::vector<int> order_;  // by rank
  std::deque<std::vector<int>> history_;
};

// Falls off as recorded gates do: .265 .201 .166 .141 .121 .106 at six.
std::vector<float> Weights(int top_k) {
  std::vector<double> weights;
  for (int i = 0; i < top_k; ++i) weights.push_back(1.0 / (i + 3.33));
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  std::vector<float> rounded;
  for (const double weight : weights) rounded.push_back(static_cast<float>(weight / sum));
  return rounded;
}

}  // namespace

Trace GenerateTrace(const GeneratorOptions& options) {
  Random random(options.seed);
  std::vector<LayerRouter> routers;
  for (int layer = 0; layer < options.layers; ++layer) {
    const double depth = options.layers == 1 ? 0.5 : layer / (options.layers - 1.0);
    routers.emplace_back(
        options, options.first_exponent + depth * (options.last_exponent - options.first_exponent),
        &random);
  }
  const std::vector<float> weights = Weights(options.top_k);
  Trace trace{options.layers, options.experts, {}};
  int topic_left = 100 + random.Below(401);
  for (int token = 0; token < options.tokens; ++token) {
    if (topic_left-- == 0) {
      for (LayerRouter& router : routers) router.NewTopic();
      topic_left = 100 + random.Below(401);
    }
    for (int layer = 0; layer < options.layers; ++layer) {
      RouteGroup group{true, 0, token, layer, {}};
      const std::vector<int> experts = routers[layer].NextToken();
      for (int i = 0; i < options.top_k; ++i) group.routes.push_back({experts[i], weights[i]});
      trace.groups.push_back(std::move(group));
    }
  }
  return trace;
}

}  // namespace stoker::offload
