//! Arguments of the kernels of a mixture of experts, as `kernels/cuda` declares them
//! ([`layout!`](super::headers::layout)).

use super::headers::layout;
use super::kernels::{Part, RowArgs, WideArgs};
use super::memory::DevicePtr;

layout! {
    /// An expert that a row chose.
    #[derive(PartialEq)]
    pub struct Choice in "experts.cuh" {
        pub expert: i32,
        pub weight: f32,
    }

    /// Places that one product covers.
    #[derive(PartialEq, Eq)]
    pub struct Share in "experts.cuh" {
        pub expert: i32,
        pub first: i32,
        pub count: i32,
    }

    /// Routing of a step: the choices of its rows.
    pub struct Routing in "experts.cuh" {
        pub choices: DevicePtr<Choice>,
        pub places: DevicePtr<i32>,
        pub rows: DevicePtr<i32>,
        pub shares: DevicePtr<Share>,
        pub counts: DevicePtr<i32>,
    }

    pub struct RouteArgs in "route.cu" {
        pub logits: DevicePtr<f32>,
        pub to: Routing,
        pub stride: i32,
        pub rows: i32,
        pub experts: i32,
        pub used: i32,
        pub weighing: i32,
        pub share_rows: i32,
        pub place_group: i32,
        pub factor: f32,
        pub scales: DevicePtr<f32>,
        pub choice_bias: DevicePtr<f32>,
        pub scale: f32,
        pub unused: i32,
    }

    pub struct RouteFewArgs in "route_few.cu" {
        pub norm: RowArgs,
        pub router: Part,
        pub route: RouteArgs,
    }

    pub struct ProductsArgs in "products_few.cu" {
        pub input: RowArgs,
        pub parts: [Part; 3],
        pub n_parts: i32,
        pub out_stride: i32,
        pub add: i32,
        pub unused: i32,
        pub out: DevicePtr<f32>,
    }

    pub struct ExpertsArgs in "experts.cuh" {
        pub parts: [Part; 2],
        pub routing: Routing,
        pub x: DevicePtr<u16>,
        pub scale: DevicePtr<f32>,
        pub out: DevicePtr<f32>,
        pub by_place: i32,
        pub paired: i32,
        pub units: i32,
        pub out_stride: i32,
        pub activation: i32,
        pub unused: i32,
    }

    pub struct ExpertsPackArgs in "experts_wide.cu" {
        pub x: DevicePtr<u16>,
        pub scale: DevicePtr<f32>,
        pub rows: DevicePtr<i32>,
        pub out: DevicePtr<u16>,
        pub out_scale: DevicePtr<f32>,
        pub units: i32,
        pub groups: i32,
    }

    pub struct ExpertsWideArgs in "experts_wide.cu" {
        pub wide: WideArgs,
        pub shares: DevicePtr<Share>,
        pub counts: DevicePtr<i32>,
        pub activation: i32,
        pub out_units: i32,
    }

    pub struct CombineArgs in "combine.cuh" {
        pub routing: Routing,
        pub results: DevicePtr<f32>,
        pub shared: DevicePtr<f32>,
        pub logits: DevicePtr<f32>,
        pub x: DevicePtr<f32>,
        pub stride: i32,
        pub experts: i32,
        pub used: i32,
        pub n_embd: i32,
        pub stores: i32,
        pub gates_shared: i32,
    }

    pub struct DownArgs in "experts_row.cu" {
        pub down: ExpertsArgs,
        pub inputs: DevicePtr<f32>,
        pub cols: i32,
        pub unused: i32,
        pub combine: CombineArgs,
    }
}
