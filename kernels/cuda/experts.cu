// Everything of a mixture of experts, and the products around its attention, as one translation unit.
#include "route.cu"
#include "route_few.cu"
#include "experts_row.cu"
#include "experts_walk.cu"
#include "experts_many.cu"
#include "combine.cu"
#include "products_few.cu"
