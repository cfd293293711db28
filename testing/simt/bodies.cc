#include "testing/simt/bodies.h"

namespace stoker::testing::simt {

Body ShippedBody(const Scenario& scenario) { return BodyFor<SimtEnvironment>(scenario); }

}  // namespace stoker::testing::simt
